"""The assignment of a service class and targets to each request of a trace.

A request's class is the class that ``by_task`` names for its task; else a class drawn by the classes' shares, if they
have any; else the default. Draws come from the generator that is passed in, the same number for every assignment, so
that two SLO files with equal shares give the same requests the same classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.core.slo import MAX_TARGET_S, SLO, ClassTable, SLOClass, Targets
from sloserve.core.speeds import DigestSpeeds
from sloserve.sim.workloads.trace import Trace


@dataclass(frozen=True, slots=True)
class ScaledDeadline:
    """A deadline in proportion to the output: scale * (prompt_s + token_s * output tokens) after arrival.

    Args:
        prompt_s: Mean latency of a prompt, measured on the unloaded engine, in seconds.
        token_s: Mean latency of one output token, measured on the unloaded engine, in seconds.
        scale: Factor on both latencies.

    Source: EconoServe, Sec. 4 (SLO-scale, 2 by default).
    """

    scale: float
    prompt_s: float
    token_s: float

    def e2e_s(self, output_tokens: int) -> float:
        """Return the end-to-end target of a request with ``output_tokens`` tokens, in seconds, at most a week."""
        return min(self.scale * (self.prompt_s + self.token_s * output_tokens), MAX_TARGET_S)


@dataclass(frozen=True, slots=True)
class ClassRule:
    """A class, and the rule for targets that differ between its requests.

    Args:
        slo_class: The class.
        share: Share of the class in the requests that are drawn, 0..1; ``None`` if no classes are drawn.
        speeds: Distribution from which the TDS of each request is drawn.
        deadline: Deadline from which the e2e target of each request follows.
    """

    slo_class: SLOClass
    share: float | None = None
    speeds: DigestSpeeds | None = None
    deadline: ScaledDeadline | None = None


@dataclass(frozen=True, slots=True)
class SLOAssignment:
    """The classes of a workload, and the rule for which request gets which class.

    Args:
        source: Name of the file, for messages.
        rules: The classes.
        by_task: Name of the class of each named task.
        default: Name of the class of all other requests when no shares are given; ``None`` if a task without a class is
            an error.
    """

    source: str
    rules: tuple[ClassRule, ...]
    by_task: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    @property
    def table(self) -> ClassTable:
        """The table of the classes, as the engine's front end would know them."""
        default = self.default or self.rules[0].slo_class.name
        return ClassTable({rule.slo_class.name: rule.slo_class for rule in self.rules}, default)

    def assign(self, trace: Trace, rng: np.random.Generator) -> list[SLO]:
        """Return the SLO of each request of ``trace``, ``[requests]``.

        It is a function of the trace and the state of ``rng``.

        Raises: ConfigError for a task that gets no class.
        """
        class_draw, speed_draw = rng.random(len(trace)), rng.random(len(trace))
        drawn = self._drawn(class_draw)
        rules = {rule.slo_class.name: rule for rule in self.rules}
        speeds = {name: rule.speeds.at(speed_draw) for name, rule in rules.items() if rule.speeds is not None}
        shared = {
            name: SLO(rule.slo_class, rule.slo_class.targets, rule.slo_class.promise) for name, rule in rules.items()
        }
        slos = []
        for i, (task, name) in enumerate(zip(trace.task, drawn, strict=True)):
            name = self.by_task.get(task, name)
            if name is None:
                raise ConfigError(
                    f"{self.source}: by_task: task {task!r} of trace {trace.name!r} has no class; add it or a default"
                )
            rule = rules[name]
            own = Targets(
                tds=float(speeds[name][i]) if name in speeds else None,
                e2e_s=rule.deadline.e2e_s(int(trace.output_tokens[i])) if rule.deadline else None,
            )
            of_class = shared[name]
            slos.append(SLO(rule.slo_class, own.over(of_class.targets), of_class.promise) if own else of_class)
        return slos

    def _drawn(self, quantile: np.ndarray) -> list[str | None]:
        shares = [rule.share or 0.0 for rule in self.rules]
        if all(rule.share is None for rule in self.rules):
            return [self.default] * quantile.size
        steps = np.cumsum(shares)
        picked = np.searchsorted(steps / steps[-1], quantile, side="right")
        return [self.rules[i].slo_class.name for i in picked]


DEFAULT_ASSIGNMENT = SLOAssignment(
    source="built-in SLOs",
    rules=(
        ClassRule(SLOClass("interactive", 0, Targets(ttft_s=0.5, tpot_s=0.05)), share=0.5),
        ClassRule(SLOClass("batch", 1, Targets(e2e_s=30.0), aged_after_s=600.0), share=0.5),
    ),
    default="interactive",
)
"""The assignment of a workload that comes with no SLO file.

Half is interactive, with TTFT 500 ms and TPOT 50 ms as in the usual goodput flags of serving benchmarks; half is batch,
with 30 s end to end (the e2e target of the simulated-annealing paper, Sec. 5.1).
"""
