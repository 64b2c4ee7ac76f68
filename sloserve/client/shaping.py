"""What is done to a workload before it is sent: lengths capped to what the model holds, a slow start."""

import math
from collections.abc import Sequence
from dataclasses import replace

from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest

TEXT_MARGIN = 0.05
"""Room to leave in the context for prompts made of words, whose length in tokens is only estimated."""


def cap_lengths(
    requests: Sequence[WorkloadRequest], max_prompt_tokens: int | None, max_output_tokens: int | None
) -> tuple[list[WorkloadRequest], int]:
    """``requests`` with lengths cut to the caps (``None``: not), and how many were cut. Nothing is dropped."""
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
    """The same requests, the rate of arrival rising linearly from 0 to its full height over the first ``ramp_s``.

    Half as many requests as usual fit into that time, so all later ones come ``ramp_s / 2`` later.
    """
    if ramp_s <= 0.0:
        return list(requests)

    def warped(arrival_s: float) -> float:
        # At the rate t / ramp_s, the integral of which over 0..t is what arrived: t * t / (2 * ramp_s).
        return math.sqrt(2.0 * ramp_s * arrival_s) if arrival_s < ramp_s / 2.0 else arrival_s + ramp_s / 2.0

    return [replace(request, arrival_s=warped(request.arrival_s)) for request in requests]


def check_context(requests: Sequence[WorkloadRequest], context_tokens: int | None, *, estimated: bool) -> None:
    """Checks that every prompt and its reply fit the model's context; nothing to check where that is not known.

    estimated: prompts are words, whose length in tokens is estimated.

    Raises: ConfigError naming the longest request.
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
            "cap them with --max-prompt-tokens and --max-output-tokens"
        )
