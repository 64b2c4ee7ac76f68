"""The results of a fleet's run: one log of all its requests, and the phases of each instance."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.outcome import Outcome
from sloserve.core.promises import Promised
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.core.spans import PhaseSpan


@dataclass(frozen=True, slots=True, eq=False)
class FleetLog:
    """The log of a fleet's run.

    Args:
        run: Log as of one engine, with the steps of all engines together.
        spans: Spans of each instance, one after another.
    """

    run: RunLog
    spans: tuple[PhaseSpan, ...]


def joined(
    request: WorkloadRequest, parts: Sequence[RequestLog], kept: Sequence[int], promised: Promised | None = None
) -> RequestLog:
    """Return the log of a request that several engines served in turn, each but the last evicting it.

    Args:
        request: The request.
        parts: Log of the request in each engine.
        kept: Number of tokens with KV that each engine had kept when it got the request; it counts if the engine loaded
            the KV.
        promised: The promise that the fleet gave; ``None`` for none.
    """
    if not parts:
        return RequestLog(request, Outcome.LOST, np.empty(0))
    last = parts[-1]
    again = sum(
        part.request.prompt_tokens - (min(tokens, part.request.prompt_tokens - 1) if part.num_swaps else 0)
        for part, tokens in zip(parts[1:], kept[1:], strict=True)
    )
    return RequestLog(
        request,
        Outcome.LOST if last.outcome is Outcome.ABORTED else last.outcome,
        np.concatenate([part.token_times_s for part in parts]),
        sum(part.num_preemptions for part in parts) + len(parts) - 1,
        sum(part.recomputed_tokens for part in parts) + again,
        last.predicted,
        last.stages if len(parts) == 1 else None,
        sum(part.num_swaps for part in parts),
        parts[0].cached_tokens,
        promised,
    )
