"""Reads and checks the parameters of files and batches. Each function raises InvalidRequest, which names the field."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import FormData
from starlette.requests import Request

from sloserve.core.errors import InvalidRequest
from sloserve.fleet.batch_api.lines import storable

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3_600, "d": 86_400}
_LONGEST_WINDOW_S: Final = 30 * 86_400
_LEAST_LIFETIME_S, _LONGEST_LIFETIME_S = 3_600, 30 * 86_400
_MOST_METADATA: Final = 16


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list, as a client asks for it.

    Args:
        limit: The most objects on it.
        after: Id that ended the page before, or ``None`` for the first page.
        oldest_first: Whether the oldest objects come first.
        purpose: Purpose that files on it have, or ``None`` for any.
    """

    limit: int
    after: str | None
    oldest_first: bool = False
    purpose: str | None = None


def page(request: Request, *, most: int, usual: int) -> Page:
    """Return which page of a list a request asks for, in OpenAI's parameters ``after`` and ``limit``."""
    refuse_unknown(request.query_params, ("after", "limit"))
    return Page(*_limit_and_after(request, most, usual))


def page_of_files(request: Request, *, most: int, usual: int) -> Page:
    """Return which page of the list of files a request asks for: this has ``order`` and ``purpose``, too."""
    query = request.query_params
    refuse_unknown(query, ("after", "limit", "order", "purpose"))
    order, purpose = query.get("order", "desc"), query.get("purpose")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order", order, "asc or desc")
    if purpose is not None and not storable(purpose):
        raise InvalidRequest("purpose", purpose, "a purpose of files, such as batch or batch_output")
    return Page(*_limit_and_after(request, most, usual), order == "asc", purpose)


def refuse_unknown(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise InvalidRequest for a parameter that is not known: it would be ignored, and its client not know."""
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(name, value, f"a parameter of this route, which has {', '.join(known)}")


def _limit_and_after(request: Request, most: int, usual: int) -> tuple[int, str | None]:
    text = request.query_params.get("limit", str(usual))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise InvalidRequest("limit", text, f"a whole number of 1 to {most}")
    after = request.query_params.get("after")
    if after is not None and not storable(after):
        raise InvalidRequest("after", after, "an id of an earlier page")
    return int(text), after


def window(text: object) -> tuple[str, float]:
    """Return a completion window as its client wrote it, and in seconds."""
    found = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if found is None or seconds > _LONGEST_WINDOW_S:
        allowed = "a number of minutes, hours or days of at most 30 days, such as 24h or 45m"
        raise InvalidRequest("completion_window", text, allowed)
    return found[0], float(seconds)


def expires_after(form: FormData) -> float | None:
    """Return the seconds in OpenAI's form fields ``expires_after[anchor]`` and ``expires_after[seconds]``."""
    text, anchor = (form.get(f"expires_after[{name}]") for name in ("seconds", "anchor"))
    if text is None and anchor is None:
        return None
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10
    return _lifetime("expires_after", int(text) if is_number else text, anchor)  # type: ignore[arg-type]


def output_expires_after(values: object) -> float | None:
    """Return the seconds in OpenAI's object ``output_expires_after`` with ``anchor`` and ``seconds``."""
    if values is None:
        return None
    if not isinstance(values, dict) or values.keys() - {"anchor", "seconds"}:
        raise InvalidRequest("output_expires_after", values, "an object with anchor and seconds")
    return _lifetime("output_expires_after", values.get("seconds"), values.get("anchor", "created_at"))


def _lifetime(field: str, seconds: object, anchor: object) -> float:
    is_number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not is_number or not _LEAST_LIFETIME_S <= seconds <= _LONGEST_LIFETIME_S:  # type: ignore[operator]
        allowed = f"a whole number of {_LEAST_LIFETIME_S} to {_LONGEST_LIFETIME_S}"
        raise InvalidRequest(f"{field}[seconds]", seconds, allowed)
    if anchor not in (None, "created_at"):
        raise InvalidRequest(f"{field}[anchor]", anchor, "created_at, the time when the file is created")
    return float(seconds)  # type: ignore[arg-type]


def metadata(values: object) -> dict[str, str] | None:
    """Return the metadata of a batch, or ``None`` if it has none."""
    if values is None:
        return None
    fits = isinstance(values, dict) and len(values) <= _MOST_METADATA
    if not fits or not all(_is_note(k, v) for k, v in values.items()):  # type: ignore[attr-defined]
        allowed = f"an object of at most {_MOST_METADATA} strings, keys up to 64 characters and values up to 512"
        raise InvalidRequest("metadata", values, allowed)
    return dict(values)  # type: ignore[call-overload, no-any-return]


def _is_note(key: str, value: object) -> bool:
    return isinstance(value, str) and len(key) <= 64 and len(value) <= 512 and storable(key + value)
