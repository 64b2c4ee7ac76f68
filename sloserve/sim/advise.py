"""The search for the policy, engine flags and admission that suit a workload: searched on one part, judged on another.

The search is coarse to fine and has a budget: step sizes first, for every policy; then ``max_num_seqs`` for the two
best runs, of stock and of the policies; then admissions for the best one of each. What is found is judged against
stock at its own best, by paired differences on requests that the search never saw. It is advised only if its interval
leaves zero out, and, where vLLM's scheduler is asked too, only if it is not below stock there. The best run of the
general policy and the best of the simpler ones are compared in the same way, since a tie leaves a choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.scheduler.registry import GENERAL, parse_policy
from sloserve.sim.report.statistics import Mean, mean_interval
from sloserve.sim.run_name import STOCK, RunName
from sloserve.sim.tuning import KEPT, Axes, Evaluate, Score, ranked, variants


@dataclass(frozen=True, slots=True)
class Space:
    """The space that is searched.

    Args:
        policies: Policies to try beside stock.
        sized: Policies that are tried with each value of the first flag; the other policies set the size of their steps
            themselves.
        axes: Values of each flag.
        admissions: Our admissions, tried at the end.
        stock_caps: vLLM's caps, tried at the end.
        most_names: Most runs that are tried.
    """

    policies: tuple[str, ...]
    sized: tuple[str, ...]
    axes: Axes
    admissions: tuple[str, ...] = ()
    stock_caps: tuple[str, ...] = ()
    most_names: int = 1000


@dataclass(slots=True)
class Found:
    """What the search found.

    Args:
        tried: Score of each run that was tried, by name.
        untried: Number of runs that the budget did not reach.
    """

    tried: dict[str, Score] = field(default_factory=dict)
    untried: int = 0

    def best(self, *, stock: bool) -> list[str]:
        """Return the names of stock's runs, or of all others, best first."""
        scores = {name: score for name, score in self.tried.items() if (RunName.parse(name).policy == STOCK) == stock}
        return ranked(scores, STOCK)


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run beside another on requests that the search never saw.

    Args:
        name: Name of the run.
        reference: Name of the run that it is compared with.
        score: Score of the run.
        reference_score: Score of the reference.
        difference: Difference of the shares of requests in time, paired by seed.
        real: Scores of both on vLLM's own scheduler, in one run each; ``None`` if they did not run there.
    """

    name: str
    reference: str
    score: Score
    reference_score: Score
    difference: Mean
    real: tuple[Score, Score] | None = None

    @property
    def covers_zero(self) -> bool:
        """Whether the interval of the difference includes zero."""
        low, high = self.difference.low, self.difference.high
        return low is None or high is None or low <= 0.0 <= high

    @property
    def is_better(self) -> bool:
        """Whether the interval of the difference lies above zero, and vLLM's scheduler does not contradict."""
        low = self.difference.low
        if low is None or low <= 0.0:
            return False
        return self.real is None or self.real[0].mean_attainment >= self.real[1].mean_attainment


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice, and the comparisons that it rests on.

    Args:
        name: Name of the advised run, plain stock where nothing is better.
        judged: The comparisons made, in order.
        found: What the search found.
        beside: The best run of a simpler policy where a general policy's run is advised, or the other way round, with
            the advised run as its reference; ``None`` where stock is advised or no other was tried.
    """

    name: str
    judged: tuple[RunComparison, ...]
    found: Found
    beside: RunComparison | None = None

    @property
    def tie(self) -> RunComparison | None:
        """The comparison ``beside`` if it shows no difference, else ``None``."""
        return self.beside if self.beside is not None and self.beside.covers_zero else None


def search(space: Space, settings: EngineSettings, evaluate: Evaluate) -> Found:
    """Try what :class:`Space` lists, within its budget.

    ``evaluate`` runs on the part of the workload to search on.
    """
    found = Found()

    def run(names: Sequence[str]) -> None:
        left = max(space.most_names - len(found.tried), 0)
        found.untried += len(names[left:])
        found.tried |= evaluate(names[:left]) if names[:left] else {}

    (first, values), *others = space.axes.items()
    plain = [STOCK, *space.policies]
    sized = {name: variants([name], [name], first, values, settings) for name in (STOCK, *space.sized)}
    run([*plain, *_in_turn(list(sized.values()))])
    for flag, values in others:
        run([*chain.from_iterable(_more(found, flag, values, settings, stock=stock) for stock in (True, False))])
    run(
        [
            f"{name}+{cap}"
            for stock, caps in ((True, space.stock_caps), (False, space.admissions))
            for name in found.best(stock=stock)[:1]
            for cap in caps
        ]
    )
    return found


def _more(found: Found, flag: str, values: Sequence[int], settings: EngineSettings, *, stock: bool) -> Iterator[str]:
    for name in found.best(stock=stock)[:KEPT]:
        yield from variants([name], [name], flag, values, settings)


def _in_turn(lists: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the first name of each list, the second of each and so on: a budget that ends cuts all policies alike."""
    for i in range(max(map(len, lists), default=0)):
        yield from (names[i] for names in lists if i < len(names))


def decide(found: Found, seeds: int, judge: Evaluate, confirm: Evaluate | None) -> Advice:
    """Return the advice that follows from what was found.

    Args:
        found: What the search found.
        seeds: Number of seeds of ``judge``'s points, which are loads times seeds.
        judge: Function that runs names on the part of the workload that the search did not see.
        confirm: The same function on vLLM's scheduler; ``None`` to skip this.
    """
    stock, ours = found.best(stock=True)[:1] or [STOCK], found.best(stock=False)[:1]
    other = [name for name in found.best(stock=False) if ours and is_general(name) != is_general(ours[0])][:1]
    scores = judge(list(dict.fromkeys([STOCK, *stock, *ours, *other])))
    judged: list[RunComparison] = []
    for name, reference in ((*ours, stock[0]), (stock[0], STOCK)) if ours else ((stock[0], STOCK),):
        if name == reference:
            continue
        one = _judged(name, reference, scores, seeds)
        if one.is_better and confirm is not None:
            real = confirm([name, reference])
            one = _judged(name, reference, scores, seeds, (real[name], real[reference]))
        judged.append(one)
        if one.is_better:
            beside = [_judged(rival, name, scores, seeds) for rival in other if [name] == ours]
            return Advice(name, tuple(judged), found, *beside)
    return Advice(STOCK, tuple(judged), found)


def is_general(name: str) -> bool:
    """Return whether this run uses the policy for all kinds of targets."""
    return parse_policy(RunName.parse(name).policy)[0] == GENERAL


def _judged(
    name: str,
    reference: str,
    scores: Mapping[str, Score],
    seeds: int,
    real: tuple[Score, Score] | None = None,
) -> RunComparison:
    differences = np.subtract(scores[name].attainment, scores[reference].attainment)
    difference = mean_interval(differences.reshape(-1, seeds).mean(axis=0).tolist())
    assert difference is not None, "there is a point"
    return RunComparison(name, reference, scores[name], scores[reference], difference, real)
