"""Requests for the models of a fleet: QLM's workloads, as generators.

Source: QLM, Sec. 8. The paper leaves some things open, which this module chooses: lengths are ShareGPT's; arrivals are
Poisson; a request's model, its class and its lengths are drawn independently; the latency-sensitive class is the most
urgent of the fleet's classes, and all others share the rest alike. Mega prompts take a large part of the longest
context that their model serves: prompts 30 to 60 % of it, outputs 2 to 4 %.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.files.model import unknown
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import ClassTable, Targets
from sloserve.scheduler.registry import parse_policy
from sloserve.sim.workloads.arrival_processes import Gamma, generate
from sloserve.sim.workloads.conversation_lengths import conversations
from sloserve.sim.workloads.length_models import sharegpt
from sloserve.sim.workloads.seeding import stream

_MEGA_PROMPT = (0.3, 0.6)
_MEGA_REPLY = (0.02, 0.04)

KINDS = {
    "w-a": "more models than instances, most of them seldom asked for; latency-sensitive requests and batch jobs",
    "w-b": "the same for one model",
    "w-c": "w-a, and mega prompts",
}
OPTIONS = ("latency_share", "tail_share", "mega_share", "cv", "rounds")


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """The demand for one model.

    Args:
        name: Name of the model.
        share: Share of all requests that ask for the model.
        tail: Whether the model is seldom asked for.
        context: Longest context that the model serves, in tokens.
    """

    name: str
    share: float
    tail: bool
    context: int


@dataclass(frozen=True, slots=True)
class FleetWorkload:
    """One of QLM's workloads.

    Args:
        name: Name of the workload.
        latency_share: Share of the requests in the most urgent class.
        tail_share: Share of the requests that ask for tail models; ``None`` to use the shares of these models.
        mega_share: Share of the requests that are mega prompts.
        cv: Coefficient of variation of the gaps between arrivals, 1 for Poisson; with rounds, between conversations.
        rounds: Mean number of rounds of a conversation; 1 for none. All requests of a conversation have one model and
            class, and carry their earlier rounds.
    """

    name: str
    latency_share: float = 0.3
    tail_share: float | None = None
    mega_share: float = 0.0
    cv: float = 1.0
    rounds: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "FleetWorkload":
        """Return the workload that a text such as ``w-a:latency_share=0.2:tail_share=0.1`` describes.

        Raises: ConfigError for an unknown name, option or value.
        """
        name, given = parse_policy(text)
        if name not in KINDS:
            raise ConfigError(f"workload {name!r} {unknown(name, tuple(KINDS))} (of a fleet)")
        options: dict[str, float] = {"mega_share": 0.02} if name == "w-c" else {}
        for key, value in given.items():
            if key not in OPTIONS:
                raise ConfigError(f"workload {text!r}: option {key!r} {unknown(key, OPTIONS)}")
            least = 1.0 if key == "rounds" else 0.0
            limit = 20.0 if key in ("cv", "rounds") else 1.0
            try:
                options[key] = numbers.number(value)
            except ValueError:
                options[key] = -1.0
            if not least <= options[key] <= limit or (key == "cv" and not options[key]):
                raise ConfigError(f"workload {text!r}: {key}: {value!r} is not a number from {least:g} to {limit:g}")
        return cls(name, **options)

    def requests(
        self, n: int, seed: int, rps: float, models: Collection[ModelDemand], classes: ClassTable
    ) -> list[WorkloadRequest]:
        """Return ``n`` requests of ``seed``, ``rps`` a second on average.

        Raises: ConfigError where tail models must have a share and there is no tail model.
        """
        if self.rounds > 1.0:
            trace, asks = conversations(self.name, Gamma(self.cv), sharegpt(), n, seed, rps, self.rounds)
        else:
            trace, asks = generate(self.name, Gamma(self.cv), sharegpt(), n, seed, rps), np.arange(n)
        shares = self._shares(models)
        names = list(shares)
        drawn = int(asks.max()) + 1
        chosen = stream(seed, f"{self.name}/models").choice(len(names), drawn, p=list(shares.values()))
        by_rank = sorted(classes, key=lambda c: c.rank)
        rng = stream(seed, f"{self.name}/classes")
        urgent = rng.random(drawn) < self.latency_share
        other = rng.integers(0, max(len(by_rank) - 1, 1), drawn)
        mega = stream(seed, f"{self.name}/mega")
        is_mega, low_high = mega.random(n) < self.mega_share, mega.random((n, 2))
        context = {m.name: m.context for m in models}
        requests = []
        prefixes = trace.prefix_ids or [()] * n
        for i, ask in enumerate(asks.tolist()):
            model = names[int(chosen[ask])]
            of_class = by_rank[0] if urgent[ask] or len(by_rank) == 1 else by_rank[1 + int(other[ask])]
            request = WorkloadRequest(
                request_id=f"r{i}",
                arrival_s=float(trace.arrival_s[i]),
                prompt_tokens=int(trace.prompt_tokens[i]),
                output_tokens=int(trace.output_tokens[i]),
                slo=classes.slo(of_class.name, Targets()),
                priority=of_class.rank,
                model=model,
                prefix_ids=prefixes[i],
            )
            requests.append(_mega(request, context[model], low_high[i]) if is_mega[i] else request)
        return requests

    def _shares(self, models: Collection[ModelDemand]) -> dict[str, float]:
        if self.name == "w-b":
            return {max(models, key=lambda m: m.share).name: 1.0}
        shares = {m.name: m.share for m in models}
        if self.tail_share is None:
            return shares
        tail = sum(m.share for m in models if m.tail)
        if not 0.0 < tail < 1.0:
            raise ConfigError(
                f"workload {self.name}: tail_share: the fleet has no tail models beside others; set tail: true for some"
            )
        scale = {True: self.tail_share / tail, False: (1.0 - self.tail_share) / (1.0 - tail)}
        return {m.name: m.share * scale[m.tail] for m in models}


def _mega(request: WorkloadRequest, context: int, at: np.ndarray) -> WorkloadRequest:
    prompt, reply = (
        int(context * (low + (high - low) * x))
        for (low, high), x in zip((_MEGA_PROMPT, _MEGA_REPLY), at.tolist(), strict=True)
    )
    return replace(request, prompt_tokens=max(prompt, 1), output_tokens=max(reply, 1), task="mega", prefix_ids=())
