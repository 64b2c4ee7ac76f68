"""What a step of vLLM's computes, in the terms of the latency models, and how long it took.

Timed from the call of ``schedule()`` to the return of ``update_from_output()``, as profiles are: what the engine spends
on itself is part of its pace.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile
from sloserve.estimator.step_time.recalibrate import Recalibrated
from sloserve.estimator.step_time.timer import StepTimer


def step_load(output: Any) -> StepLoad:
    """The load of a SchedulerOutput.

    Whoever was in a step before and has one token in this one is taken to decode: so does nearly everyone, and the last
    token of a prompt costs the same.
    """
    scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    chunks = [(scheduled[new.req_id], new.num_computed_tokens) for new in output.scheduled_new_reqs]
    decodes, context = len(cached.req_ids), sum(cached.num_computed_tokens)
    if output.total_num_scheduled_tokens > decodes + sum(tokens for tokens, _ in chunks):
        parts = zip(map(scheduled.__getitem__, cached.req_ids), cached.num_computed_tokens, strict=True)
        longer = [(tokens, computed) for tokens, computed in parts if tokens > 1]
        decodes -= len(longer)
        context -= sum(computed for _, computed in longer)
        chunks += longer
    return replace(StepLoad.of(chunks), decode_seqs=decodes, decode_context_tokens=context + decodes)


class StepPace:
    """Corrects a profile by the steps of the engine in use; ``latency`` is the model as corrected so far."""

    def __init__(self, profile: Profile) -> None:
        self.latency = Recalibrated(profile)
        self._timer = StepTimer()

    def scheduled(self, output: Any, now_s: float) -> None:
        """A step was scheduled."""
        self._timer.scheduled(step_load(output), now_s)

    def output(self, now_s: float) -> None:
        """The oldest step in flight gave its output."""
        timed = self._timer.output(now_s)
        if timed is not None:
            self.latency.observe(*timed)

    def figures(self) -> Mapping[str, float]:
        """How far the engine is from its profile, by names of the page's figures."""
        constant, prefill, decode = self.latency.factors
        return {
            "step_error": self.latency.relative_error,
            "step_factor_constant": constant,
            "step_factor_prefill": prefill,
            "step_factor_decode": decode,
        }
