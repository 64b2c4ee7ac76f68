"""What an endpoint picker says to Envoy, and what it reads in Envoy's messages."""

import json
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

from sloserve.core.errors import SloServeError
from sloserve.fleet.beside.endpoint_picker.messages import OVERWRITE, ProcessingResponse
from sloserve.wire import errors

DESTINATION: Final = "x-gateway-destination-endpoint"
_CHOSEN: Final = "envoy.lb"
_SERVED: Final = "x-gateway-destination-endpoint-served"
_HINT: Final = "envoy.lb.subset_hint"
_SUBSET: Final = "x-gateway-destination-endpoint-subset"
MOST_SUBSET: Final = 4096
"""Most servers that are read of a subset."""
_PIECE_BYTES: Final = 60_000
"""Most bytes of a body in one message: some proxies take no longer ones than 64 KiB."""


def headers_in(shown: Any) -> list[tuple[bytes, bytes]]:
    """Return the headers of a HeaderMap; the names are in lower case, as HTTP/2 has them."""
    return [(one.key.lower().encode(), one.raw_value or one.value.encode()) for one in shown.headers]


def subset_in(metadata: Any) -> list[str] | None:
    """Return the servers that a request may go to, as its metadata say; ``None`` if they say nothing of it."""
    stated = metadata.filter_metadata.get(_HINT)
    value = None if stated is None else stated.fields.get(_SUBSET)
    if value is None:
        return None
    if value.HasField("list_value"):
        texts: Iterable[str] = [one.string_value for one in value.list_value.values[:MOST_SUBSET]]
    else:
        texts = value.string_value.split(",", MOST_SUBSET)[:MOST_SUBSET]
    return [text for one in texts if (text := one.strip())]


def served_in(metadata: Any) -> str | None:
    """Return the server that served a request, as the metadata of its response say."""
    stated = metadata.filter_metadata.get(_CHOSEN)
    value = None if stated is None else stated.fields.get(_SERVED)
    return None if value is None else value.string_value or None


def chosen(servers: Sequence[str], *, in_body: bool = False) -> Any:
    """Return the message that names the chosen server in both ways of the protocol, which must say the same.

    Args:
        servers: The chosen server, and the servers to try after it.
        in_body: Whether it answers the body, which Envoy has buffered, in place of the headers.
    """
    made, value = ProcessingResponse(), ",".join(servers)
    common = (made.request_body if in_body else made.request_headers).response
    common.clear_route_cache = True
    _set(common.header_mutation, [(DESTINATION, value)])
    made.dynamic_metadata.get_or_create_struct(_CHOSEN)[DESTINATION] = value
    return made


def unchanged(kind: str) -> Any:
    """Return the message that leaves a part of a request or of a response as it is.

    Args:
        kind: Name of the part, as ``response_headers``.
    """
    made = ProcessingResponse()
    getattr(made, kind).SetInParent()
    return made


def pieces(kind: str, body: bytes, *, is_end: bool) -> Iterator[Any]:
    """Yield the messages that hand a body on in full-duplex mode.

    Args:
        kind: ``request_body`` or ``response_body``.
        body: Bytes of the body.
        is_end: Whether nothing of the body follows.
    """
    for start in range(0, max(len(body), 1), _PIECE_BYTES):
        made = ProcessingResponse()
        streamed = getattr(made, kind).response.body_mutation.streamed_response
        streamed.body = body[start : start + _PIECE_BYTES]
        streamed.end_of_stream = is_end and start + _PIECE_BYTES >= len(body)
        yield made


def refused(error: SloServeError, path: str) -> Any:
    """Return the message with which Envoy answers a request itself, with the status and body that an engine has."""
    return _immediate(errors.status(error), str(error), errors.headers(error), path)


def without_server(path: str) -> Any:
    """Return the message for a request for which there is no server."""
    return _immediate(HTTPStatus.SERVICE_UNAVAILABLE, "no server is there to choose from", [], path)


def _immediate(status: HTTPStatus, text: str, headers: list[tuple[str, str]], path: str) -> Any:
    made = ProcessingResponse()
    immediate = made.immediate_response
    immediate.status.code = status.value
    _set(immediate.headers, [("content-type", "application/json"), *headers])
    immediate.body = json.dumps(errors.form_of(path)(status, text, None)).encode()
    immediate.details = f"sloserve_{status.value}"
    return made


def _set(mutation: Any, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        option = mutation.set_headers.add(append_action=OVERWRITE)
        option.header.key, option.header.raw_value = name, value.encode()
