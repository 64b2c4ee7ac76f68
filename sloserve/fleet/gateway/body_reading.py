"""What a gateway reads in the body of a request, and what of it goes on to an engine."""

import json
from typing import Any, Final, NamedTuple

import msgspec

from sloserve.core.errors import InvalidRequest
from sloserve.fleet.client_routes import POOLING, RESPONSES
from sloserve.fleet.gateway.body_changes import appended, changed, restated, without_slo
from sloserve.fleet.gateway.prefixes import part
from sloserve.fleet.sizes import MEDIA_TOKENS, prompt_bytes
from sloserve.wire.body import BYTES_PER_TOKEN, Body, BodyFields, read_body
from sloserve.wire.form import Form, is_form, read_form
from sloserve.wire.lenient import flag
from sloserve.wire.resolve import XARGS, Resolved

CONTENT_TYPE: Final = "content-type"
_BILLING: Final = b"x-anthropic-billing-header"
"""Begin of a part of Claude Code's system prompt that differs in each request, and that vLLM leaves out."""


class ReadBody(Body):
    """Fields of a body that decide where it goes."""

    model: Any = None
    stream: Any = None
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    priority: Any = None
    background: Any = None
    request_id: Any = None
    cache_salt: Any = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()


class Prompt(NamedTuple):
    """The prompt of a request, as bytes of its body.

    Args:
        messages: Messages of a conversation, empty if the prompt is a text.
        text: The text, empty if the prompt is a conversation.
        before: What engines put before the messages, as tools and instructions.
        size: Number of bytes of the whole prompt.
    """

    messages: memoryview
    text: memoryview
    before: bytes
    size: int

    @classmethod
    def of(cls, read: ReadBody, route: str, body_bytes: int) -> "Prompt":
        """Return the prompt of a body that was read; a body of other fields counts as a whole."""
        messages, text, items = part(read.messages), part(read.prompt), part(read.input)
        before = b"".join((part(read.tools), _without_billing(part(read.system)), part(read.instructions)))
        size = prompt_bytes(messages or text or items)
        if route == RESPONSES:
            is_list = bytes(items[:1]) == b"["
            messages, text = (items, text) if is_list else (messages, items)
        return cls(messages, text, before, size + len(before) if size else body_bytes)

    @classmethod
    def of_form(cls, form: Form) -> "Prompt":
        """Return the prompt of a recording, of which the bytes say nothing of its tokens."""
        size = len(form.value("prompt") or "") + MEDIA_TOKENS * BYTES_PER_TOKEN
        return NO_PROMPT._replace(size=size)


NO_PROMPT: Final = Prompt(memoryview(b""), memoryview(b""), b"", 0)


def _without_billing(system: memoryview) -> bytes:
    if _BILLING not in bytes(system):
        return bytes(system)
    try:
        parts = msgspec.json.decode(system, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return bytes(system)
    return b"".join(bytes(one) for one in parts if _BILLING not in bytes(one))


def recording(body: bytes, content_type: bytes) -> Form:
    """Return the form of a recording. Raises: InvalidRequest for any other body."""
    if not is_form(content_type):
        raise InvalidRequest(CONTENT_TYPE, content_type, "multipart/form-data with the fields file and model")
    read_body(body, content_type)  # refuses a field that no server reads
    return read_form(body, content_type)


def of_form(form: Form) -> ReadBody:
    """Return the fields of a form that decide where it goes. Raises: InvalidRequest."""
    text = form.value(XARGS)
    try:
        xargs = None if text is None else msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidRequest(XARGS, text, "JSON") from None
    return ReadBody(
        model=form.value("model"),
        stream=form.value("stream"),
        max_completion_tokens=form.value("max_completion_tokens"),
        vllm_xargs=xargs,
        use_beam_search=flag(form.value("use_beam_search")),
    )


def form_to_send(form: Form, restating: Resolved | None) -> tuple[bytes, str]:
    """Return the form that the engine gets, and its content type.

    Args:
        form: Form of the client.
        restating: SLO that it is to state in place of its own; ``None`` to leave its own.
    """
    if restating is not None:
        form.values.pop(XARGS, None)
        form.values |= {XARGS: [json.dumps(restating.xargs)]} if restating.xargs else {}
    return form.encoded()


def own_salt(read: ReadBody) -> str | None:
    """Return the salt that a body states; one that is no text is for the engine to refuse."""
    return read.cache_salt if isinstance(read.cache_salt, str) and read.cache_salt else None


def previous_response(read: ReadBody) -> str | None:
    """Return the id of the response that a request continues. Raises: InvalidRequest for what no fleet serves."""
    if flag(read.background) is True:
        raise InvalidRequest("background", True, "left out: a fleet keeps no response for later; use /v1/batches")
    previous = read.previous_response_id
    if previous is not None and not isinstance(previous, str):
        raise InvalidRequest("previous_response_id", previous, "a string")
    return previous


def to_send(
    body: bytes, read: ReadBody, in_body: BodyFields, route: str, restating: Resolved | None, salt: str | None
) -> bytes:
    """Return the body that the engine gets.

    Args:
        body: Body of the client.
        read: What was read of it.
        in_body: SLO that it states.
        route: Route of the engine.
        restating: SLO that it is to state in place of its own; ``None`` to leave its own.
        salt: Salt that it is to have.
    """
    if route in POOLING and (read.slo is not None or in_body.xargs):
        body = without_slo(body)
    elif restating is not None:
        body = restated(body, restating)
    is_standard = isinstance(read.messages, msgspec.Raw)  # else it is an extension of JSON
    if route == RESPONSES and (read.request_id is not None or not is_standard):
        body = changed(body, lambda values: values.pop("request_id", None))  # the gateway makes the ids of responses
    if salt is None or salt == read.cache_salt or read.model is None:
        return body
    if read.cache_salt is None and is_standard:
        return appended(body, "cache_salt", salt)
    return changed(body, lambda values: values.update(cache_salt=salt))
