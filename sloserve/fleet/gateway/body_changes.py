"""Changes of a request's body on its way to an engine; what is not changed stays as its client wrote it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sloserve.wire import form
from sloserve.wire.resolve import XARGS, Resolved


def changed(body: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a body with some of its fields changed; the others stay as they are written, numbers of any kind too."""
    try:
        raw: dict[str, Any] = {**msgspec.json.decode(body, type=dict[str, msgspec.Raw])}
        change(raw)
        return msgspec.json.encode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # an extension of JSON, which engines read too
        values = json.loads(body)
        change(values)
        return json.dumps(values).encode()


def appended(body: bytes, name: str, value: str) -> bytes:
    """Return a body with one more field at its end, where readers find it if the name stands there twice.

    Args:
        body: A JSON object with at least one field.
        name: Name of the field, in plain letters.
        value: Value of the field, in plain characters.
    """
    return body.rstrip()[:-1] + f',"{name}":"{value}"}}'.encode()


def restated(body: bytes, resolved: Resolved) -> bytes:
    """Return a body that states no more than its tenant may."""

    def restate(values: dict[str, Any]) -> None:
        slo = values.pop("slo", None)
        slo = msgspec.json.decode(slo) if isinstance(slo, msgspec.Raw) else slo
        if isinstance(slo, dict) and "report" in slo:
            values["slo"] = {"report": slo["report"]}
        values.pop(XARGS, None)
        if resolved.xargs:
            values[XARGS] = dict(resolved.xargs)

    return changed(body, restate)


def without_slo(body: bytes) -> bytes:
    """Return a body that states no SLO, for a route on which the gateway alone keeps it."""

    def restate(values: dict[str, Any]) -> None:
        values.pop("slo", None)
        values.pop(XARGS, None)

    return changed(body, restate)


def changed_form(body: bytes, content_type: str, values: Mapping[str, str]) -> tuple[bytes, str]:
    """Return a form with some of its fields changed, and its content type."""
    read = form.read_form(body, content_type.encode())
    for name, value in values.items():
        read.values[name] = [value]
    return read.encoded()
