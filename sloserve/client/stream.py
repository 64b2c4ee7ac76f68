"""A streamed reply, chunk by chunk: when its tokens came, and what the server said of it.

A chunk may carry several tokens. Where it says how many there are so far (``continuous_usage_stats``) each chunk counts
for what it adds; else the total of the final usage is spread evenly over the chunks that carry text or a tool call.
"""

import json
from typing import Any

import numpy as np

from sloserve.client.pieces import has_text
from sloserve.core.arrays import FloatArray

DONE = "[DONE]"


class StreamReader:
    """Takes the data of each event as it comes.

    chunk_times_s: of every chunk that carries a choice, in the caller's seconds: what ``vllm bench serve`` counts.
    done: the server said that the stream is complete, or gave a reason for its end. error: what the server said went
    wrong. slo: how the request fared, as sloserve's server saw it.
    """

    def __init__(self) -> None:
        self.chunk_times_s: list[float] = []
        self.done = False
        self.error: str | None = None
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.slo: dict[str, Any] | None = None
        self._counts: list[int | None] = []
        self._visible: list[bool] = []

    def feed(self, data: str, now_s: float) -> None:
        """Takes the data of one event that came at ``now_s``."""
        if self.chunk_times_s:  # a time before an earlier one counts as equal to it
            now_s = max(now_s, self.chunk_times_s[-1])
        if data == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except json.JSONDecodeError:
            chunk = None
        if not isinstance(chunk, dict):
            self.error = self.error or f"a chunk that is no JSON object: {data[:80]!r}"
            return
        if chunk.get("error") is not None:
            self.error = self.error or error_message(chunk)
            return
        usage = chunk.get("usage") or {}
        if choices := chunk.get("choices"):
            self.chunk_times_s.append(now_s)
            self._counts.append(usage.get("completion_tokens"))
            self._visible.append(has_text(choices[0]) or bool((choices[0].get("delta") or {}).get("tool_calls")))
            self.done = self.done or choices[0].get("finish_reason") is not None
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        self.output_tokens = usage.get("completion_tokens", self.output_tokens)
        if isinstance(chunk.get("slo"), dict):
            self.slo = chunk["slo"]

    def token_times_s(self) -> FloatArray:
        """When each token came, ``[tokens]``, in the caller's seconds."""
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


def error_message(body: Any) -> str:
    """What an error body says, in OpenAI's form or FastAPI's, in at most 300 characters."""
    found = body
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return (found if isinstance(found, str) else json.dumps(found))[:300]
