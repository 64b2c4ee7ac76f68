"""Drives an engine of virtual time event by event, as a fleet does: it is told of nothing before it happens."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from tests import bounded


def stepped(engine: Any, requests: Sequence[WorkloadRequest], aborts: Mapping[str, float] | None = None) -> RunLog:
    """The log of ``requests``, each given when it arrives. aborts: when clients of requests go away."""
    gone = aborts or {}
    outside = sorted(
        [(r.arrival_s, 0, i) for i, r in enumerate(requests)]
        + [(gone[r.request_id], 1, i) for i, r in enumerate(requests) if r.request_id in gone]
    )
    for at, is_abort, i in [*outside, (math.inf, 0, 0)]:
        with bounded.within("the engine to come to the next event"):
            while engine.at < at:
                engine.advance()
        if at == math.inf:
            break
        if is_abort:
            engine.abort(requests[i].request_id, at)
        else:
            engine.give(requests[i])
    log: RunLog = engine.log(requests)
    return log
