"""Count how many tokens of text a piece of an OpenAI stream brings its reader.

A piece is a chunk of chat or completions, an event of the Responses API, or a plain string; an object of the SDK or a
dict. No tokenizer is used: a chunk that states how many tokens there are so far (vLLM's ``continuous_usage_stats``)
counts for what it adds, any other with text for one. A chunk with text that is still held back (half a character, a
possible stop string) counts for nothing, and its tokens count for the next chunk that has text. Tool calls are not
read, so they count for none.
"""

from collections.abc import Mapping
from typing import Any

TEXT_KEYS = ("content", "reasoning_content", "reasoning", "refusal")
MOST_PIECE_TOKENS = 10_000
"""Largest count of one piece. A higher count of a server is wrong, and would keep the reader waiting for hours."""
_TEXT_EVENTS = frozenset(
    {
        "content.delta",  # of the SDK's chat.completions.stream()
        "response.output_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.refusal.delta",
    }
)


class TextCounter:
    """Counts a stream's tokens, piece by piece.

    Each of several choices has its own count, and one reader reads them all.
    """

    def __init__(self) -> None:
        self._counted: dict[int | None, int] = {}

    def text_tokens(self, piece: object) -> int:
        """Return the tokens that ``piece`` brings; 0 for one without text, at least 1 for one with text."""
        if isinstance(piece, str):
            return int(piece != "")
        choices = _field(piece, "choices")
        if not isinstance(choices, list) or not choices:
            kind = _field(piece, "type")
            return int(isinstance(kind, str) and kind in _TEXT_EVENTS and bool(_field(piece, "delta")))
        if len(choices) > 1:  # the usage does not say which choice it counts
            return sum(has_text(choice) for choice in choices)
        so_far = _field(_field(piece, "usage"), "completion_tokens")
        return self._of_choice(choices[0], so_far if type(so_far) is int else None)

    def _of_choice(self, choice: object, so_far: int | None) -> int:
        """Return the tokens that a choice brings.

        Args:
            choice: a choice of a chunk.
            so_far: Tokens of the choice up to here; ``None`` if the server does not state them.
        """
        index = _field(choice, "index")
        index = index if isinstance(index, int) else None
        counted = self._counted.get(index, 0)
        if not has_text(choice):
            if so_far is not None and _field(_field(choice, "delta"), "tool_calls"):
                self._counted[index] = max(counted, so_far)
            return 0
        tokens = 1 if so_far is None else max(1, so_far - counted)
        self._counted[index] = counted + tokens
        return min(tokens, MOST_PIECE_TOKENS)


def has_text(choice: object) -> bool:
    """Return whether a choice of a chunk brings its reader text."""
    delta = _field(choice, "delta")
    return bool(_field(choice, "text")) or any(_field(delta, key) for key in TEXT_KEYS)


def _field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
