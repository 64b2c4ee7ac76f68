"""The lines of a batch's input file: read one by one, each either a request or an error that names it."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from sloserve.core.errors import InvalidRequest, shown
from sloserve.fleet.client_routes import CHAT, COMPLETIONS
from sloserve.fleet.sizes import line_output_tokens, output_limit, outputs_asked, prompt_bytes
from sloserve.wire import strict_json
from sloserve.wire.body import BYTES_PER_TOKEN
from sloserve.wire.lenient import flag, number
from sloserve.wire.xargs import PREFIX

_EMBEDDINGS: Final = "/v1/embeddings"
ENDPOINTS: Final = (CHAT, COMPLETIONS, _EMBEDDINGS)
MOST_DEPTH: Final = 200
"""Deepest nesting of values: how deep Python reads and writes depends on its caller's stack, 1,000 at most."""
_MAX_CUSTOM_ID: Final = 512
Salt = Callable[[str | None], str | None]
"""Returns the ``cache_salt`` that a line is to have, given its own if it has one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one input file.

    Args:
        line_bytes: The most bytes of one line, which is also the memory that reading takes.
    """

    file_bytes: int = 200_000_000
    lines: int = 50_000
    line_bytes: int = 4_000_000


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A request on one line.

    Args:
        body: Body that goes to the engine.
        prompt_tokens: Estimated tokens of the prompt, from its length.
        output_tokens: Estimated output tokens, from the limits of the request.
    """

    number: int
    custom_id: str
    model: str
    body: bytes
    prompt_tokens: int
    output_tokens: float


@dataclass(frozen=True, slots=True)
class LineError:
    """A fault of a line, or of the whole file if there is no line."""

    number: int | None
    code: str
    message: str
    param: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the error as OpenAI's API writes it."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.number}


class _Wrong(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


def read_lines(
    file: BinaryIO, endpoint: str, models: Collection[str], limits: Limits, salt: Salt = lambda own: own
) -> Iterator[BatchLine | LineError]:
    """Yield each line of a file in order, without empty ones. A line beyond a limit is the last.

    Args:
        file: The file, opened for reading.
        endpoint: Route that each line must ask for.
        models: Names of the models that the fleet serves.
        limits: Limits of the file.
        salt: Returns the ``cache_salt`` that a line is to have, given its own if it has one.
    """
    seen: set[str] = set()
    number, blank = 0, 0
    while raw := file.readline(limits.line_bytes + 1):
        number += 1
        if len(raw) > limits.line_bytes:
            yield LineError(number, "line_too_long", f"the line has more than {limits.line_bytes} bytes")
            return
        is_blank = not raw.strip()
        blank += is_blank
        if is_blank and blank <= limits.lines:
            continue
        if len(seen) >= limits.lines or is_blank:
            what = "empty lines" if is_blank else "requests"
            message = f"the file has more than {limits.lines} {what}; split it into several batches"
            yield LineError(number, "too_many_requests", message)
            return
        try:
            line = _line(number, raw, endpoint, models, salt)
            if line.custom_id in seen:
                raise _Wrong("duplicate_custom_id", f"{shown(line.custom_id)} is on an earlier line too", "custom_id")
            seen.add(line.custom_id)
            yield line
        except _Wrong as wrong:
            yield LineError(number, wrong.code, str(wrong), wrong.param)
    if number == blank:
        yield LineError(None, "empty_file", "the file has no request")


def read_custom_ids(file: BinaryIO, after: int) -> Iterator[tuple[int, str]]:
    """Yield number and ``custom_id`` of the requests after line ``after`` of a file that has passed validation."""
    for place, raw in enumerate(file, 1):
        if place > after and raw.strip():
            yield place, json.loads(raw)["custom_id"]


def storable(text: str) -> bool:
    """Return whether every database stores the text: PostgreSQL has no NUL, none has half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _line(number: int, raw: bytes, endpoint: str, models: Collection[str], salt: Salt = lambda own: own) -> BatchLine:
    try:
        values = strict_json.loads(raw)
    except ValueError as error:
        raise _Wrong("invalid_json_line", f"the line {error}") from None
    if not isinstance(values, dict):
        raise _Wrong("invalid_json_line", "the line is not a JSON object")
    if raw.count(b"[") + raw.count(b"{") > MOST_DEPTH and _is_deep(values):
        raise _Wrong("invalid_json_line", f"the line has values within values, more than {MOST_DEPTH} deep")
    custom_id = values.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_CUSTOM_ID or not storable(custom_id):
        allowed = f"a string of 1 to {_MAX_CUSTOM_ID} Unicode characters"
        raise _Wrong("invalid_custom_id", f"{shown(custom_id)} is not {allowed}", "custom_id")
    if values.get("method") != "POST":
        raise _Wrong("invalid_method", f"{shown(values.get('method'))} is not 'POST'", "method")
    if values.get("url") != endpoint:
        raise _Wrong("mismatched_url", f"{shown(values.get('url'))} is not the batch's endpoint {endpoint}", "url")
    body = values.get("body")
    if not isinstance(body, dict):
        raise _Wrong("invalid_body", "there is no JSON object in it", "body")
    if body.get("stream") is not None and flag(body["stream"]) is not False:
        raise _Wrong("stream_not_allowed", "results of a batch come in a file, not in a stream", "body.stream")
    _check_slo(body)
    model = body.get("model")
    if not isinstance(model, str) or model not in models:
        known = ", ".join(sorted(models))
        raise _Wrong("model_not_found", f"{shown(model)} is not served here; there are {known}", "body.model")
    own = body.get("cache_salt")
    salted = salt(own if isinstance(own, str) and own else None)
    if salted is not None:
        body["cache_salt"] = salted
    # The text is ASCII: half of a surrogate pair, which JSON allows, has no other encoding.
    text = json.dumps(body, separators=(",", ":")).encode()
    return BatchLine(
        number, custom_id, model, text, prompt_bytes(raw) // BYTES_PER_TOKEN, _output_tokens(body, endpoint)
    )


def _is_deep(values: object) -> bool:
    level = [values]
    for _ in range(MOST_DEPTH):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [one for part in inner for one in part if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _check_slo(body: dict[str, Any]) -> None:
    """Refuse targets on a line: its batch's window is its deadline. OpenAI's service tiers are ignored."""
    body.pop("service_tier", None)
    xargs = body.get("vllm_xargs")
    stated = [key for key in ("slo", "priority") if body.get(key)]
    if number(body.get("priority")) == 0:
        stated = [key for key in stated if key != "priority"]  # vLLM's default, however it is written
    stated += [f"vllm_xargs.{key}" for key in xargs if key.startswith(PREFIX)] if isinstance(xargs, dict) else []
    if stated:
        text = f"{stated[0]} is not allowed in a batch: its completion_window sets the deadline; leave it out"
        raise _Wrong("slo_not_allowed", text, f"body.{stated[0]}")


def _output_tokens(body: dict[str, Any], endpoint: str) -> float:
    if endpoint == _EMBEDDINGS:
        return 0.0
    try:
        count = outputs_asked(body.get("n"), endpoint)
    except InvalidRequest as error:
        raise _Wrong("invalid_n", str(error), "body.n") from None
    return count * line_output_tokens(output_limit(body.get("max_tokens"), body.get("max_completion_tokens")))
