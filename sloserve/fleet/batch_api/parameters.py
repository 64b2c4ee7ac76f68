"""Reads and checks the parameters of files and batches. Each function raises InvalidRequest, which names the field."""

import re
from typing import Final

from starlette.datastructures import FormData
from starlette.requests import Request

from sloserve.core.errors import InvalidRequest
from sloserve.fleet.batch_api.lines import storable

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3_600, "d": 86_400}
_LONGEST_WINDOW_S: Final = 30 * 86_400
_MOST_METADATA: Final = 16


def page(request: Request, *, most: int, usual: int) -> tuple[int, str | None]:
    text = request.query_params.get("limit", str(usual))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise InvalidRequest("limit", text, f"a whole number of 1 to {most}")
    after = request.query_params.get("after")
    if after is not None and not storable(after):
        raise InvalidRequest("after", after, "an id of an earlier page")
    return int(text), after


def window(text: object) -> tuple[str, float]:
    found = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    seconds = 0 if found is None else int(found[1]) * _SECONDS[found[2]]
    if found is None or seconds > _LONGEST_WINDOW_S:
        allowed = "a number of minutes, hours or days of at most 30 days, such as 24h or 45m"
        raise InvalidRequest("completion_window", text, allowed)
    return found[0], float(seconds)


def expires_after(form: FormData) -> float | None:
    """Return the seconds in OpenAI's form fields ``expires_after[anchor]`` and ``expires_after[seconds]``."""
    text = form.get("expires_after[seconds]")
    if text is None:
        return None
    count = int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 3_600 <= count <= 2_592_000:
        raise InvalidRequest("expires_after[seconds]", text, "a whole number of 3600 to 2592000")
    if form.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidRequest("expires_after[anchor]", form.get("expires_after[anchor]"), "created_at")
    return float(count)


def metadata(values: object) -> dict[str, str] | None:
    if values is None:
        return None
    fits = isinstance(values, dict) and len(values) <= _MOST_METADATA
    if not fits or not all(_is_note(k, v) for k, v in values.items()):  # type: ignore[attr-defined]
        allowed = f"an object of at most {_MOST_METADATA} strings, keys up to 64 characters and values up to 512"
        raise InvalidRequest("metadata", values, allowed)
    return dict(values)  # type: ignore[call-overload, no-any-return]


def _is_note(key: str, value: object) -> bool:
    return isinstance(value, str) and len(key) <= 64 and len(value) <= 512 and storable(key + value)
