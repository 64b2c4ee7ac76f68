"""Prediction of the time at which an instance would complete a request that is sent there now, and of what it costs.

Prompts that wait there are computed first, at the rate of full steps; then each token takes a step of all running
requests, and a request that finds all seats taken waits for one. Requests that come meanwhile are assumed to be like
the present ones: each of the others ends and another takes its place, and its prompt makes a step longer. All times are
expected values.

A request also costs the others at the instance time: while its prompt is computed, each of them waits for its next
token or its turn. Their delays count as its own time does, so that a prompt is not computed again at an instance where
many wait for it, only because the request itself would be complete a little earlier there.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.snapshot import serving_of
from sloserve.scheduler.virtual_queues.contract import RunningSums

_UNKNOWN_S: Final = 1e-4
"""Seconds per token if no profile says how long steps take: enough to tell a long queue from a short one."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request, or several, in tokens.

    Args:
        requests: Number of requests.
        prompt_tokens: Tokens of their prompts.
        output_tokens: Expected output tokens.
    """

    requests: int = 1
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0


NOTHING: Final = Work(0)


def total(works: Iterable[Work]) -> Work:
    """Return the sum of all works."""
    works = list(works)
    requests = sum(work.requests for work in works)
    return Work(requests, sum(work.prompt_tokens for work in works), sum(work.output_tokens for work in works))


class InstanceForecast(NamedTuple):
    """Expected times of a request at an instance.

    Args:
        first_s: Seconds from now until its first token.
        completion_s: Seconds from now until its last token.
        delays_s: Seconds by which the requests at the instance end later, added up.
    """

    first_s: float
    completion_s: float
    delays_s: float

    @property
    def cost_s(self) -> float:
        """Seconds that the request takes, with the seconds by which it delays other requests."""
        return self.completion_s + self.delays_s


class Pace:
    """The speed of one model on one kind of device.

    Attributes:
        kv_tokens: Tokens that the KV cache of an engine holds; infinite if that is not known.
    """

    def __init__(self, serving: Serving | None, *, is_kv_known: bool = True) -> None:
        """Compute the speed of prompts.

        Args:
            serving: Latency and engine settings of the model; ``None`` if they are not known.
            is_kv_known: Whether engines keep as much KV as their profile says, and none elsewhere.
        """
        self._serving = serving
        self.kv_tokens = float(serving.engine.kv_tokens) if serving is not None and is_kv_known else math.inf
        self._prompt_token_s = _UNKNOWN_S
        if serving is not None:
            budget = serving.engine.token_budget
            load = StepLoad(prefill_tokens=budget, num_prefills=1, prefill_attention_tokens2=budget**2)
            self._prompt_token_s = serving.latency.step_s(load) / budget

    def times_s(
        self, running: RunningSums, sent: Work, new: Work, cached_tokens: float, usual: Work
    ) -> InstanceForecast:
        """Return the expected times of ``new``.

        Args:
            running: Load that the instance last reported.
            sent: Work that was sent there since.
            new: Size of the new request.
            cached_tokens: Tokens of the new prompt that should be in the prefix cache.
            usual: Size of a usual request there, its prompt without what is cached.
        """
        prompt = max(new.prompt_tokens - cached_tokens, 1.0)
        prompts_s = (running.prefill_tokens + sent.prompt_tokens + prompt) * self._prompt_token_s
        others = running.requests + sent.requests
        others_output = running.output_tokens + sent.output_tokens
        delays_s = others * prompt * self._prompt_token_s
        if self._serving is None:
            return InstanceForecast(prompts_s, prompts_s + (others_output + new.output_tokens) * _UNKNOWN_S, delays_s)
        seats = self._serving.engine.max_num_seqs
        context = running.context_tokens + sent.prompt_tokens + new.prompt_tokens
        step = StepLoad(0, 0, min(others + 1, seats), int(context))
        step_s = self._serving.latency.step_s(step)
        waits = max(others + 1 - seats, 0) / seats * (others_output / max(others, 1))
        first_s = prompts_s + (waits + 1.0) * step_s
        followed = min(others, seats) * new.output_tokens / max(usual.output_tokens, 1.0)
        meanwhile_s = followed * self._longer_s(step, step_s, usual.prompt_tokens) if followed else 0.0
        completion_s = first_s + (max(new.output_tokens, 1.0) - 1.0) * step_s + meanwhile_s
        return InstanceForecast(first_s, completion_s, delays_s)

    def _longer_s(self, step: StepLoad, step_s: float, prompt_tokens: float) -> float:
        """Return the seconds by which a prompt makes a step longer, or several if it is not computed in one.

        Args:
            step: Load of the step without the prompt.
            step_s: Time of that step in seconds.
            prompt_tokens: Tokens of the prompt.
        """
        assert self._serving is not None
        latency, part = self._serving.latency, min(int(prompt_tokens), self._serving.engine.token_budget)
        if part < 1:
            return 0.0
        both = StepLoad(part, 1, step.decode_seqs, step.decode_context_tokens, part**2)
        return max(latency.step_s(both) - step_s, 0.0) * prompt_tokens / part


def paces_of(fleet: Fleet) -> dict[tuple[str, str], Pace]:
    """Return the speed of each model on each kind of device.

    How much KV engines keep is not known where hosts have swap space, where others started the server, and where a
    model's further arguments may say how much memory or which connector keeps KV.
    """
    unknown = {host.device for host in fleet.hosts.values() if host.swap_space_bytes or host.attach}
    return {
        (model, device): Pace(serving, is_kv_known=device not in unknown and not fleet.models[model].start.arguments)
        for (model, device), serving in serving_of(fleet).items()
    }
