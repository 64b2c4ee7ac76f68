"""A durable request on its way through an engine: what is sent, what has come back, and how another engine continues.

Most requests are streamed from the engine, so that what has been generated is known when the model must leave; the
output is put together again as one that was not streamed. It is continued by token ids, through ``/v1/completions``
whatever route it came by. What a continuation could change (seeds, stop strings, penalties, log probabilities,
grammars, tools, several choices, arguments of logits processors) is not streamed, and is computed from scratch by the
next engine. So is a prompt with images, audio or video: its token ids only mark where they stood.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from sloserve.fleet.client_routes import CHAT, COMPLETIONS
from sloserve.fleet.sizes import output_limit, whole
from sloserve.fleet.store.records import Claimed

MOST_BYTES: Final = 16_000_000
"""Most bytes of a kept output. An agent holds one for each running line; 20 log probabilities of 8,000 tokens fit."""

_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "ignore_eos")
_CONTINUED: Final = frozenset(
    {"model", "prompt", "messages", "max_tokens", "max_completion_tokens", "user", "metadata", "store", "service_tier"}
    | {"n", "stream", "slo", "cache_salt", *_SAMPLING}
)
"""Fields of a body that a continuation obeys."""
_ABORTED: Final = "abort"
_BYTES_OF_ID: Final = 8
_USUAL_MAX_TOKENS: Final = 16
"""Value of ``max_tokens`` for completions that state none."""


class BrokenOutput(Exception):
    """The engine's response is not a model output, or ended before it was complete."""


class TooLong(BrokenOutput):
    """The output is longer than is kept; another attempt would give one as long."""

    def __init__(self) -> None:
        super().__init__(f"the output has more than {MOST_BYTES} bytes; ask for fewer tokens or log probabilities")


class _Choice(msgspec.Struct):
    """What is read of a choice in an event of the stream.

    What an engine says is read into types here, so that no other code has to doubt it.
    """

    text: str | None = None
    delta: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: Any = None


class _Event(msgspec.Struct):
    id: str | None = None
    created: int | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    choices: list[_Choice] | None = None
    error: Any = None


class _Whole(msgspec.Struct):
    usage: dict[str, Any] = {}


_EVENTS: Final = msgspec.json.Decoder(_Event)
_WHOLE: Final = msgspec.json.Decoder(_Whole)
_STATED: Final = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
"""Names of the tokens of prompt and output in the usage of a response, by route."""


class _Progress(msgspec.Struct):
    """Tokens of the prompt, tokens of the output until now and their text, and the id of the output."""

    prompt: list[int]
    tokens: list[int]
    text: str
    id: str
    created: int


@dataclass(slots=True)
class LineOutput:
    """One attempt at one request.

    Args:
        claimed: Request as the store has it.
        is_streamed: Whether the engine is asked for a stream, and an abort leaves progress.
    """

    claimed: Claimed
    is_streamed: bool
    _body: dict[str, Any]
    _before: _Progress | None
    _prompt: list[int] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)
    _unseen: list[int] = field(default_factory=list)  # tokens with text held back, as parts of a character
    _text: list[str] = field(default_factory=list)
    _other: dict[str, str] = field(default_factory=dict)
    _head: dict[str, Any] = field(default_factory=dict)
    _finish: dict[str, Any] | None = None
    _usage: dict[str, Any] | None = None
    _rest: bytes = b""
    _size: int = 0

    @classmethod
    def of(cls, claimed: Claimed) -> "LineOutput":
        """Make an attempt that goes on from the progress of an earlier one, if there is some."""
        body = json.loads(claimed.body)
        streamed = _is_continuable(claimed.route, body)
        before = None
        if streamed and claimed.progress is not None:
            try:
                before = msgspec.json.decode(claimed.progress, type=_Progress)
            except msgspec.DecodeError:
                before = None  # another version wrote it: start from scratch
        return cls(claimed, streamed, body, before)

    # What is sent.

    @property
    def path(self) -> str:
        """Route of the engine."""
        return COMPLETIONS if self._before is not None else self.claimed.route

    def body(self) -> bytes:
        """Return the body that the engine gets."""
        if not self.is_streamed:
            return self.claimed.body
        asked = dict(self._body)
        if self._before is not None:
            asked = {name: asked[name] for name in ("model", "cache_salt", *_SAMPLING) if name in asked}
            asked |= {"prompt": self._before.prompt + self._before.tokens, "max_tokens": self.max_tokens}
        asked |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        return json.dumps(asked, separators=(",", ":")).encode()

    @property
    def is_complete(self) -> bool:
        """Whether the engine has said why the output ended."""
        return self._finish is not None

    @property
    def _has_all(self) -> bool:
        """Whether nothing is left to generate, whether or not the engine has said so."""
        limit = self.max_tokens
        return self.is_complete or (limit is not None and self._made >= limit)

    @property
    def max_tokens(self) -> int | None:
        """Output tokens that the engine is asked for; ``None`` for no limit, or for several outputs."""
        if whole(self._body.get("n")) not in (None, 1):
            return None
        stated = self._body.get("max_tokens")
        if self.claimed.route == COMPLETIONS:
            limit: int | None = output_limit(stated) or _USUAL_MAX_TOKENS
        else:
            limit = output_limit(stated, self._body.get("max_completion_tokens"))
        before = 0 if self._before is None else len(self._before.tokens)
        return None if limit is None else max(limit - before, 1)

    # What comes back.

    def add(self, part: bytes) -> None:
        """Take in a part of the stream.

        Raises: BrokenOutput with the engine's own error if this is not a stream of an output.
        """
        *lines, self._rest = (self._rest + part).split(b"\n")
        self._keep(len(self._rest), 0)
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                self._event(data)

    def _event(self, data: bytes) -> None:
        try:
            event = _EVENTS.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BrokenOutput("the engine's response is not a stream of a model output") from error
        if event.error is not None:
            said = event.error.get("message") if isinstance(event.error, dict) else None
            raise BrokenOutput(str(said or "the engine's response ended with an error"))
        self._usage = event.usage or self._usage
        self._head = self._head or {"id": event.id, "created": event.created, "model": event.model}
        self._prompt = self._prompt or event.prompt_token_ids or []
        for choice in event.choices or ():
            self._choice(choice)

    def _choice(self, choice: _Choice) -> None:
        self._prompt = self._prompt or choice.prompt_token_ids or []
        delta, ids = choice.delta or {}, choice.token_ids or []
        text = choice.text or delta.get("content") or ""
        if not isinstance(text, str):
            raise BrokenOutput("the engine's response is not a stream of a model output")
        for name, value in delta.items():
            if name not in ("role", "content") and isinstance(value, str):
                self._keep(0, len(value))
                self._other[name] = self._other.get(name, "") + value
        self._keep(0, len(text) + _BYTES_OF_ID * len(ids))
        self._unseen += ids
        if text:
            self._tokens += self._unseen
            self._unseen = []
            self._text.append(text)
        if choice.finish_reason not in (None, _ABORTED):
            self._finish = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}

    def _keep(self, now: int, more: int) -> None:
        """Count the bytes in memory. Raises: TooLong.

        Args:
            now: Bytes that are held for the moment.
            more: Bytes that are kept for good; what frames tokens on their way is not counted.
        """
        self._size += more
        if self._size + now > MOST_BYTES:
            raise TooLong

    def progress(self) -> bytes | None:
        """Return what another engine goes on from; ``None`` if it starts from what it had before, or from scratch.

        A complete output is computed again: an engine that went on from it would write beyond its end.
        """
        before = self._before
        if not self.is_streamed or self._other or self._has_all or (not self._tokens and before is None):
            return None
        if before is None:
            if not self._prompt:
                return None
            before = _Progress(self._prompt, [], "", str(self._head.get("id")), self._head.get("created") or 0)
        tokens, text = before.tokens + self._tokens, before.text + "".join(self._text)
        return msgspec.json.encode(_Progress(before.prompt, tokens, text, before.id, before.created))

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompt and of the output until now, with the tokens of earlier attempts, as far as known."""
        if self._before is not None:
            return len(self._before.prompt), len(self._before.tokens) + self._made
        return len(self._prompt), self._made

    @property
    def _made(self) -> int:
        return len(self._tokens) + len(self._unseen)

    def whole(self) -> bytes:
        """Return the output as if it had not been streamed. Raises: BrokenOutput if the stream ended too early."""
        if self._finish is None:
            raise BrokenOutput("the engine's response ended before the output was complete")
        before = self._before
        text = (before.text if before else "") + "".join(self._text)
        is_chat = self.claimed.route == CHAT
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, **self._other}} if is_chat else {"text": text}
        )
        completion = {
            **self._head,
            "object": "chat.completion" if is_chat else "text_completion",
            "choices": [{"index": 0, **content, "logprobs": None, **self._finish}],
            "usage": self._usage,
        }
        if before is not None:
            completion |= {"id": before.id, "created": before.created}
            if self._usage is not None:
                made = self._usage.get("completion_tokens")
                completed = len(before.tokens) + (made if isinstance(made, int) else 0)
                completion["usage"] = {
                    "prompt_tokens": len(before.prompt),
                    "completion_tokens": completed,
                    "total_tokens": len(before.prompt) + completed,
                }
        return json.dumps(completion, separators=(",", ":")).encode()


def stated_tokens(body: bytes) -> tuple[int, int]:
    """Return the tokens of prompt and output that a whole response states; 0 where it states none."""
    try:
        usage = _WHOLE.decode(body).usage
    except (msgspec.DecodeError, RecursionError):
        return 0, 0
    prompt, output = (next((n for name in names if (n := whole(usage.get(name)))), 0) for names in _STATED)
    return prompt, output


def was_aborted(body: bytes) -> bool:
    """Return whether an output that was not streamed ended because the engine was asked to drop it."""
    if b'"abort"' not in body:
        return False
    try:
        return any(choice["finish_reason"] == _ABORTED for choice in json.loads(body)["choices"])
    except (ValueError, KeyError, TypeError):
        return False


def _is_continuable(route: str, body: dict[str, Any]) -> bool:
    if route not in (CHAT, COMPLETIONS) or not body.keys() <= _CONTINUED:
        return False
    if body.get("n") is not None and whole(body["n"]) != 1:
        return False
    if route == CHAT:
        return _is_text(body.get("messages"))
    prompt = body.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(type(t) is int for t in prompt))


def _is_text(messages: Any) -> bool:
    """Return whether every part of every message is text; an unknown part counts as something else."""
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else message
        parts = content if isinstance(content, list) else []
        if not isinstance(content, str | list | None) or not all(_is_text_part(part) for part in parts):
            return False
    return True


def _is_text_part(part: Any) -> bool:
    return isinstance(part, str) or (
        isinstance(part, dict) and part.get("type") == "text" and part.keys() <= {"type", "text"}
    )
