"""Demand that comes through one gateway, by model and class: for the planner, and to expect the length of outputs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from sloserve.core.slo import ClassTable, SLOClass
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.fleet.contract.reports import Demand, GatewayReport
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.rate import Rate
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS
from sloserve.fleet.streamed import Streamed, TokensAnEvent

_SILENT: Final = 3.0
"""Most arrivals expected in the time of a silence: of Poisson arrivals 5 % are followed by a longer one."""
_LEAST_RATE: Final = 1e-3
"""Least requests per second of a model and class that are reported."""


@dataclass(slots=True)
class _Flow:
    rate: Rate = field(default_factory=Rate)
    seen_s: float = float("-inf")
    prompt_tokens: RunningMean = field(default_factory=RunningMean)
    output_tokens: RunningMean = field(default_factory=RunningMean)

    def arrived(self, now_s: float) -> None:
        self.rate.add(1.0, now_s)
        self.seen_s = now_s

    def rate_per_s(self, now_s: float) -> float:
        """Return the requests per second; a silence bounds what is remembered."""
        return min(self.rate.at(now_s), _SILENT / max(now_s - self.seen_s, 1e-9))


class DemandMeter:
    """Arrivals and lengths by model and class; the fleet's file bounds the number of both.

    Args:
        classes: Classes of the fleet.
        an_event: Tokens that an event of each model's streams brings, by the flags of its engines; 1 for a model that
            is not listed.
    """

    def __init__(self, classes: ClassTable, an_event: Mapping[str, int] = MappingProxyType({})) -> None:
        self._classes, self._stated = classes, dict(an_event)
        self._an_event = {model: TokensAnEvent(tokens) for model, tokens in an_event.items()}
        self._flows: defaultdict[tuple[str, str], _Flow] = defaultdict(_Flow)

    def follow(self, classes: ClassTable, an_event: Mapping[str, int]) -> None:
        """Go on with another version of the fleet's file.

        What was learned of a model and class stays as long as the file has both, and the tokens per event as long as
        the flags state the same number.

        Args:
            classes: Classes of the fleet.
            an_event: Tokens per event of each of its models, as for the constructor.
        """
        kept = {model for model, tokens in an_event.items() if self._stated.get(model) == tokens}
        self._an_event = {
            model: self._an_event[model] if model in kept else TokensAnEvent(tokens)
            for model, tokens in an_event.items()
        }
        self._classes, self._stated = classes, dict(an_event)
        for key in [key for key in self._flows if key[0] not in an_event or key[1] not in classes]:
            del self._flows[key]

    def arrived(self, model: str, slo_class: str, prompt_tokens: int, now_s: float) -> None:
        flow = self._flows[model, slo_class]
        flow.arrived(now_s)
        flow.prompt_tokens.add(float(prompt_tokens))

    def tokens_so_far(self, model: str, streamed: Streamed) -> int:
        """Return about how many tokens have come of an output of a model, of which no length is stated."""
        return self._an_event.setdefault(model, TokensAnEvent()).tokens(streamed.events - 1)

    def ended(self, model: str, slo_class: str, streamed: Streamed, limit: int | None) -> int:
        """Record that an output is complete, and return how many tokens it has.

        Args:
            model: Model that served the request.
            slo_class: Name of its class.
            streamed: Counts of what was streamed of the output.
            limit: Limit of output tokens, as for :meth:`TokensAnEvent.ended`.
        """
        tokens = self._an_event.setdefault(model, TokensAnEvent()).ended(streamed, limit)
        if tokens:
            self._flows[model, slo_class].output_tokens.add(float(tokens))
        return tokens

    def output_tokens(self, model: str, slo_class: str, limit: int | None) -> float:
        """Return the expected output tokens of a new request.

        Args:
            model: Model that it asks for.
            slo_class: Name of its class.
            limit: The request's ``max_tokens``; ``None`` for no limit.
        """
        mean = self._flows[model, slo_class].output_tokens.value
        expected = float(USUAL_OUTPUT_TOKENS) if mean is None else max(mean, 1.0)
        return expected if limit is None else min(expected, float(limit))

    def report(self, held: Iterable[HeldRequest], now_s: float) -> GatewayReport:
        """Return the report for the planner.

        Args:
            held: Requests that wait in the gateway now.
            now_s: Monotonic time in seconds.
        """
        waiting: defaultdict[tuple[str, str], list[HeldRequest]] = defaultdict(list)
        for request in held:
            waiting[request.model, request.slo_class].append(request)
        known = [key for key in self._flows.keys() | waiting.keys() if key[1] in self._classes]
        demands = [
            self._demand(key, waiting.get(key, []), now_s)
            for key in sorted(known)  # a request that runs may have a class that the file no longer has
            if key in waiting or self._flows[key].rate_per_s(now_s) >= _LEAST_RATE
        ]
        return GatewayReport(tuple(demands))

    def _demand(self, key: tuple[str, str], held: list[HeldRequest], now_s: float) -> Demand:
        flow, slo_class = self._flows[key], self._classes[key[1]]
        targets = slo_class.targets
        dues = [request.wanted_s - now_s for request in held]
        output = [request.work.output_tokens for request in held]
        return Demand(
            model=key[0],
            slo_class=key[1],
            held=len(held),
            prompt_tokens=sum(request.work.prompt_tokens for request in held),
            output_tokens=sum(output),
            output_tokens2=sum(tokens**2 for tokens in output),
            first_due_in_s=min(dues, default=None),
            last_due_in_s=max(dues, default=None),
            oldest_s=max((now_s - request.arrival_s for request in held), default=0.0),
            until_first_token=targets.ttft_s is not None and targets.next_s() == targets.ttft_s,
            rate_per_s=flow.rate_per_s(now_s),
            mean_prompt_tokens=flow.prompt_tokens.value or 0.0,
            mean_output_tokens=flow.output_tokens.value or float(USUAL_OUTPUT_TOKENS),
            target_s=targets.next_s(),
            weight=weight(slo_class, self._classes),
        )


def weight(slo_class: SLOClass, classes: ClassTable) -> float:
    """Return the cost of a second of lateness, which doubles with each class that is less urgent."""
    return float(2 ** sum(other.rank > slo_class.rank for other in classes))
