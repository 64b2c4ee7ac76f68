"""How large a request is, as far as its body says: nothing here tokenizes, so that prompts are estimated by bytes."""

from typing import Final

BYTES_PER_TOKEN: Final = 4
"""Of a prompt in English."""


def whole(value: object) -> int | None:
    """A count that a body states; ``None`` for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def output_limit(max_tokens: object, max_completion_tokens: object = None) -> int | None:
    """Most tokens of a reply by these fields of a body, as vLLM reads them; ``None`` for no limit. The second is chat's
    alone, and wins.
    """
    return whole(max_completion_tokens) or whole(max_tokens)
