"""Shape a workload before it is sent: cap lengths to what the model holds, and start slowly."""

import math
from collections.abc import Sequence
from dataclasses import replace

from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest

TEXT_MARGIN = 0.05
"""Share of the context to leave free for prompts made of words, since their length in tokens is only estimated."""


def cap_lengths(
    requests: Sequence[WorkloadRequest], max_prompt_tokens: int | None, max_output_tokens: int | None
) -> tuple[list[WorkloadRequest], int]:
    """Return ``requests`` with lengths cut to the caps, and how many were cut. Nothing is dropped.

    Args:
        requests: The requests of a workload.
        max_prompt_tokens: Longest prompt; ``None`` for no cap.
        max_output_tokens: Longest output; ``None`` for no cap.
    """
    capped = [
        replace(
            request,
            prompt_tokens=min(request.prompt_tokens, max_prompt_tokens or request.prompt_tokens),
            output_tokens=min(request.output_tokens, max_output_tokens or request.output_tokens),
        )
        for request in requests
    ]
    return capped, sum(new != old for new, old in zip(capped, requests, strict=True))


def ramp_up(requests: Sequence[WorkloadRequest], ramp_s: float) -> list[WorkloadRequest]:
    """Return the same requests with a rate that rises linearly from 0 to its full height over the first ``ramp_s``.

    Half as many requests as usual fit into that time, so all later ones come ``ramp_s / 2`` later.
    """
    if ramp_s <= 0.0:
        return list(requests)

    def warped(arrival_s: float) -> float:
        # The rate is t / ramp_s; its integral over 0..t is the number that arrived: t * t / (2 * ramp_s).
        return math.sqrt(2.0 * ramp_s * arrival_s) if arrival_s < ramp_s / 2.0 else arrival_s + ramp_s / 2.0

    return [replace(request, arrival_s=warped(request.arrival_s)) for request in requests]


CAPS = "cap them with --max-prompt-tokens and --max-output-tokens"
"""The remedy for requests that are too long."""


def check_context(
    requests: Sequence[WorkloadRequest], context_tokens: int | None, *, estimated: bool, remedy: str = CAPS
) -> None:
    """Raise ConfigError if a prompt and its output do not fit the model's context; the error names the longest request.

    Args:
        requests: The requests of a workload.
        context_tokens: Length of the model's context; ``None`` if it is not known, and then nothing is checked.
        estimated: Whether prompts are words, with an estimated length in tokens.
        remedy: What to do about requests that are too long.
    """
    if context_tokens is None:
        return
    room = int(context_tokens * (1.0 - TEXT_MARGIN)) if estimated else context_tokens
    over = [request for request in requests if request.prompt_tokens + request.output_tokens > room]
    if over:
        longest = max(over, key=lambda request: request.prompt_tokens + request.output_tokens)
        margin = f", {room} of them with a margin for prompts made of words" if estimated else ""
        raise ConfigError(
            f"{len(over)} of {len(requests)} requests are longer than the model's context of {context_tokens} tokens"
            f"{margin}; the longest, {longest.request_id}, has {longest.prompt_tokens} + {longest.output_tokens}; "
            f"{remedy}"
        )
