"""The size of a request, as far as its body shows it: nothing here tokenizes, so prompts are estimated by bytes."""

import re
from typing import Final

from sloserve.core.errors import InvalidRequest
from sloserve.estimator.length.remaining import PRIOR_MEAN_TOKENS
from sloserve.fleet.client_routes import AUDIO, CHAT, COMPLETIONS, RESPONSES
from sloserve.wire.body import BYTES_PER_TOKEN
from sloserve.wire.lenient import number

USUAL_OUTPUT_TOKENS: Final = int(PRIOR_MEAN_TOKENS)
"""Assumed output tokens of a request of which nothing says how long it is, before any has ended."""


MOST_OUTPUTS: Final = 16_384
"""The most outputs for one prompt: vLLM's own limit (VLLM_MAX_N_SEQUENCES)."""
_SEVERAL: Final = (CHAT, COMPLETIONS)
"""Routes on which ``n`` is the number of outputs; on others it means nothing, and vLLM does not read it."""
MEDIA_TOKENS: Final = 1024
"""Tokens assumed for an image, a recording or a video: its bytes say nothing of its tokens."""


_MEDIA_BYTES: Final = 4096
"""Least length of a value that is taken for an image, a recording or a video."""
_HINTS: Final = re.compile(rb"base64|input_audio")
_ENCODED: Final = re.compile(rb'"(?:data:[^",]{0,200},)?[A-Za-z0-9+/=_\\-]{%d,}"' % _MEDIA_BYTES)
"""Begins with a quote, so that the time grows with the length of a text, whatever it is."""


def prompt_bytes(text: bytes | memoryview) -> int:
    """Return the bytes of a prompt in JSON; an image, a recording or a video counts as what is usual for one."""
    if len(text) < _MEDIA_BYTES or _HINTS.search(text) is None:
        return len(text)
    found = [len(match[0]) for match in _ENCODED.finditer(text)]
    return len(text) - sum(found) + len(found) * MEDIA_TOKENS * BYTES_PER_TOKEN


def whole(value: object) -> int | None:
    """Return a count that a body states, as vLLM reads it; ``None`` for a value that is no count."""
    count = number(value)
    return count if count is not None and 0 < count < 2**31 else None


def outputs_asked(n: object, route: str) -> int:
    """Return how many outputs a body asks for.

    Raises: InvalidRequest for what no engine serves, before it counts anywhere.
    """
    if n is None or route not in _SEVERAL:
        return 1
    count = number(n)
    if count is None or not 1 <= count <= MOST_OUTPUTS:
        raise InvalidRequest("n", n, f"a whole number of 1 to {MOST_OUTPUTS}")
    return count


def output_limit(max_tokens: object, max_completion_tokens: object = None) -> int | None:
    """Return the most output tokens by these fields of a body, as vLLM reads them; ``None`` for no limit.

    The second field belongs to chat alone, and wins.
    """
    return whole(max_completion_tokens) or whole(max_tokens)


def limit_on(
    route: str, max_tokens: object, max_completion_tokens: object = None, max_output_tokens: object = None
) -> int | None:
    """Return the most output tokens by the fields of a body that its route reads; ``None`` for no limit."""
    if route == RESPONSES:
        return whole(max_output_tokens)
    if route in AUDIO:
        return whole(max_completion_tokens)
    return output_limit(max_tokens, max_completion_tokens)


def line_output_tokens(limit: int | None) -> float:
    """Return the expected output tokens of a batch line, by its ``limit`` if it has one."""
    return float(min(limit or USUAL_OUTPUT_TOKENS, USUAL_OUTPUT_TOKENS))
