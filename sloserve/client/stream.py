"""Read a streamed response chunk by chunk: when its tokens came, and what the server reports of the request.

A chunk may carry several tokens. Where it says how many there are so far (``continuous_usage_stats``) each chunk counts
for what it adds; else the total of the final usage is spread evenly over the chunks that carry text or a tool call.
"""

from typing import Annotated, Any, Final

import msgspec
import numpy as np

from sloserve.client.pieces import has_text
from sloserve.client.responses import UnreadableResponse, error_message, json_value, printable
from sloserve.core.arrays import FloatArray

DONE = "[DONE]"
MOST_OUTPUT_CHARS: Final = 8 << 20
"""Most characters of an output that are kept."""
MOST_TOKENS: Final = 1_000_000
"""Most tokens of a response, and most chunks of it: each is kept with its time."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Figure = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""Sums of these over all requests of a run are finite."""


class _Choice(msgspec.Struct):
    text: Any = None
    delta: dict[str, Any] | None = None
    finish_reason: Any = None
    token_ids: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    slo: Any = None


class _Verdict(msgspec.Struct):
    """The fields of a server's report that are compared and summed over a run."""

    met: dict[str, bool | None] | None = None
    achieved: dict[str, _Figure | None] | None = None
    evictions: _Count | None = None
    paused_steps: _Count | None = None
    preempted_ms: _Figure | None = None
    paused_ms: _Figure | None = None


def _is_verdict(slo: Any) -> bool:
    """Return whether ``slo`` can be compared and summed. Other servers may use this name for objects of their own."""
    if not isinstance(slo, dict):  # of nearly every chunk, and an exception costs more
        return False
    try:
        msgspec.convert(slo, _Verdict)
    except msgspec.ValidationError:
        return False
    return True


class StreamReader:
    """Takes the data of each event as it comes.

    Attributes:
        chunk_times_s: When every chunk that carries a choice came, in the caller's seconds; ``vllm bench serve`` counts
            these chunks.
        done: The server stated that the stream is complete, or gave a reason for its end.
        error: What the server reported as wrong, or why a chunk cannot be read.
        cached_tokens: Tokens of the prompt that the server's prefix cache had; ``None`` where the server does not say.
        slo: How the request fared, as sloserve's server saw it; ``None`` where the server reports nothing, or something
            else.
        output_text: The text of the output so far, if it is kept.
        output_ids: The ids of the output's tokens so far, if it is kept; ``None`` where the server does not state them.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS, *, keep_output: bool = False) -> None:
        """Build a reader of one stream.

        Args:
            most_tokens: a response with more tokens, or more chunks, is an error, so that memory is bounded.
            keep_output: Whether the output is kept, up to ``MOST_OUTPUT_CHARS`` characters.
        """
        self.cached_tokens: int | None = None
        self.output_ids: list[int] | None = [] if keep_output else None
        self._texts: list[str] = []
        self._chars_left = MOST_OUTPUT_CHARS if keep_output else 0
        self.chunk_times_s: list[float] = []
        self.done = False
        self.error: str | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.slo: dict[str, Any] | None = None
        self._most_tokens = most_tokens
        self._counts: list[int | None] = []
        self._visible: list[bool] = []

    def feed(self, data: str, now_s: float) -> None:
        """Take the data of one event that came at ``now_s``."""
        if data == DONE:
            self.done = True
            return
        try:
            chunk: _Chunk = json_value(data, _Chunk)
        except UnreadableResponse as error:
            why = f"has another form ({error})" if data.lstrip().startswith("{") else "is no JSON object"
            self._fail(f"a chunk that {why}: {printable(data, 80)!r}")
            return
        if chunk.error is not None:
            self._fail(error_message({"error": chunk.error}))
            return
        self._take(chunk, now_s)

    def _take(self, chunk: _Chunk, now_s: float) -> None:
        usage = chunk.usage or _Usage()
        tokens = usage.completion_tokens
        if max(tokens or 0, len(self.chunk_times_s) + 1) > self._most_tokens:
            limit = f"more than {self._most_tokens} tokens or chunks, which is far more than was requested"
            remedy = "have the server keep to max_tokens (max_completion_tokens of a chat), or limit its outputs there"
            self._fail(f"{limit}; {remedy}")
            return
        if chunk.choices:
            first = chunk.choices[0]
            # A time before an earlier one counts as equal to it.
            self.chunk_times_s.append(max(now_s, self.chunk_times_s[-1]) if self.chunk_times_s else now_s)
            self._counts.append(tokens)
            self._visible.append(has_text(first) or bool((first.delta or {}).get("tool_calls")))
            self.done = self.done or first.finish_reason is not None
            if self._chars_left > 0:
                self._keep(first)
        self.prompt_tokens = self.prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        self.output_tokens = self.output_tokens if tokens is None else tokens
        details = usage.prompt_tokens_details
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        self.cached_tokens = cached if type(cached) is int and cached >= 0 else self.cached_tokens
        if _is_verdict(chunk.slo):
            self.slo = chunk.slo

    @property
    def output_text(self) -> str:
        """The text of the output so far, if it is kept."""
        return "".join(self._texts)

    def _keep(self, choice: _Choice) -> None:
        text = choice.text if choice.delta is None else choice.delta.get("content")
        if isinstance(text, str) and text:
            self._texts.append(text)
            self._chars_left -= len(text)
        ids = choice.token_ids
        if self.output_ids is None or (not ids and not text):
            return
        if isinstance(ids, list) and all(type(one) is int and one >= 0 for one in ids):
            self.output_ids += ids
        else:
            self.output_ids = None

    def _fail(self, why: str) -> None:
        self.error = self.error or why

    def token_times_s(self) -> FloatArray:
        """Return when each token came, ``[tokens]``, in the caller's seconds."""
        times_s = np.array(self.chunk_times_s)
        if not times_s.size:
            return times_s
        counts = [count for count in self._counts if count is not None]
        if len(counts) == times_s.size:
            total = max(counts[-1], self.output_tokens or 0)
            so_far = np.maximum.accumulate([*counts[:-1], total])
        else:
            visible = np.array(self._visible)
            times_s = times_s[visible] if visible.any() else times_s
            total = times_s.size if self.output_tokens is None else self.output_tokens
            # Rounded up, so that the first chunk has a token.
            so_far = -(-np.arange(1, times_s.size + 1) * total // times_s.size)
        return np.repeat(times_s, np.diff(so_far, prepend=0))
