"""What a step of vLLM's computes, in the terms of the latency models, and how long it took.

Timed from the call of ``schedule()`` to the return of ``update_from_output()``, as profiles are: what the engine spends
on itself is part of its pace.
"""

from collections.abc import Mapping
from typing import Any

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile
from sloserve.estimator.step_time.recalibrate import Recalibrated
from sloserve.estimator.step_time.timer import StepTimer


def step_load(output: Any, requests: Mapping[str, Any]) -> StepLoad:
    """The load of a SchedulerOutput. requests: vLLM's, by id, with all that are in it."""
    cached = output.scheduled_cached_reqs
    if not output.scheduled_new_reqs and output.total_num_scheduled_tokens == len(cached.req_ids):
        # One token each: they decode. The last token of a prompt computed alone counts as one that does, as it costs.
        context = sum(cached.num_computed_tokens) + len(cached.req_ids)
        return StepLoad(decode_seqs=len(cached.req_ids), decode_context_tokens=context)
    prefills, contexts = [], []
    for request_id, computed in (
        *((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs),
        *zip(cached.req_ids, cached.num_computed_tokens, strict=True),
    ):
        tokens = output.num_scheduled_tokens[request_id]
        if tokens == 1 and computed >= requests[request_id].num_prompt_tokens:
            contexts.append(computed + 1)
        else:
            prefills.append((tokens, computed))
    return StepLoad.of(prefills, contexts)


class StepPace:
    """Corrects a profile by the steps of the engine in use; ``latency`` is the model as corrected so far."""

    def __init__(self, profile: Profile) -> None:
        self.latency = Recalibrated(profile)
        self._timer = StepTimer()

    def scheduled(self, output: Any, requests: Mapping[str, Any], now_s: float) -> None:
        """A step was scheduled. Costs 10 to 50 us, for a step of a hundred requests."""
        self._timer.scheduled(step_load(output, requests), now_s)

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
