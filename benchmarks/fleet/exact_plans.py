"""The plan as a mixed-integer program, solved by HiGHS: the oracle for up to about ten groups.

Source: QLM, Sec. 7, Eq. 6 to 13. The chance constraint (Eq. 12) is in its normal-quantile form, in the times of the
problem. Differs as the local search does (csrc/include/sloserve/fleet_queues.h), so that both have one objective: the
penalty is the lateness of a group's first and last request, never below zero, a swap takes what its pair takes, and
queues may be shorter than others.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from benchmarks.fleet.edf_queues import edf_queues
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.fleet import FleetProblem, FleetQueues, fleet_search

CLOSED_GAP: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class ExactResult:
    """found: the best queues within the limit, by EDF where there were none. bound: no plan costs less.

    gap: between the two, as a share of the cost; 0 where the optimum is proven.
    """

    found: FleetQueues
    bound: float
    gap: float

    @property
    def closed(self) -> bool:
        """Whether the optimum is proven."""
        return self.gap <= CLOSED_GAP


class _Program:
    """Variables with names, rows of constraints, one objective."""

    def __init__(self) -> None:
        self.size = 0
        self.whole: list[int] = []
        self.price: dict[int, float] = {}
        self._rows: list[tuple[dict[int, float], float, float]] = []

    def variables(self, *shape: int, whole: bool = False) -> IntArray:
        """New ones, at least 0; ``whole``: 0 or 1."""
        count = int(np.prod(shape))
        found = np.arange(self.size, self.size + count, dtype=np.int64).reshape(shape)
        self.size += count
        if whole:
            self.whole.extend(found.ravel().tolist())
        return found

    def row(self, terms: dict[int, float], least: float = -np.inf, most: float = np.inf) -> None:
        self._rows.append((terms, least, most))

    def solve(self, time_limit_s: float) -> tuple[FloatArray | None, float, float]:
        """Values of the variables, ``None`` where none were found; the bound, and the relative gap."""
        at = [(r, v, factor) for r, (terms, _, _) in enumerate(self._rows) for v, factor in terms.items()]
        rows, columns, factors = zip(*at, strict=True)
        matrix = csr_array((factors, (rows, columns)), shape=(len(self._rows), self.size))
        limits = np.array([(least, most) for _, least, most in self._rows])
        price, upper, whole = np.zeros(self.size), np.full(self.size, np.inf), np.zeros(self.size)
        price[list(self.price)] = list(self.price.values())
        upper[self.whole], whole[self.whole] = 1.0, 1.0
        result = milp(
            price,
            integrality=whole,
            bounds=Bounds(np.zeros(self.size), upper),
            constraints=LinearConstraint(matrix, limits[:, 0], limits[:, 1]),
            options={"time_limit": time_limit_s, "mip_rel_gap": CLOSED_GAP},
        )
        bound = float(result.mip_dual_bound) if result.mip_dual_bound is not None else 0.0
        return result.x, bound, float(result.mip_gap) if result.x is not None else np.inf


def exact_queues(problem: FleetProblem, time_limit_s: float = 60.0) -> ExactResult:
    """The best queues that HiGHS finds within the limit of wall time, and how far from the optimum they may be."""
    n, instances = problem.model.size, problem.kind.size
    if not n:
        return ExactResult(fleet_search(problem), 0.0, 0.0)
    program = _Program()
    x = program.variables(instances, n, n, whole=True)  # instance, group, place
    start, leave = program.variables(instances, n), program.variables(instances, n)
    late = program.variables(n, 2)
    for g in range(n):
        served = [i for i in range(instances) if problem.swap_s[i, problem.model[g], problem.model[g]] == 0.0]
        program.row({int(v): 1.0 for i in served for v in x[i, g]}, 1.0, 1.0)
        program.row({int(v): 1.0 for i in range(instances) if i not in served for v in x[i, g]}, 0.0, 0.0)
        for which in late[g]:
            program.price[int(which)] = 0.5 * float(problem.weight[g])
    for i in range(instances):
        _queue(program, problem, i, x[i], start[i], leave[i], late)
    _tighten(program, problem, x, late)
    values, bound, gap = program.solve(time_limit_s)
    if values is None:
        return ExactResult(fleet_search(problem, edf_queues(problem)), bound, np.inf)
    order = values[x].round().astype(bool)
    queues = [[int(g) for place in range(n) for g in np.flatnonzero(order[i, :, place])] for i in range(instances)]
    return ExactResult(fleet_search(problem, queues), bound, gap)


def _tighten(program: _Program, problem: FleetProblem, x: IntArray, late: IntArray) -> None:
    """What follows for whole values, and not for fractions: a group at place k waits at least for the k shortest."""
    n = problem.model.size
    for g in range(n):
        for which, due_s in ((0, problem.first_due_s[g]), (1, problem.last_due_s[g])):
            terms = {int(late[g, which]): 1.0}
            for i in range(problem.kind.size):
                work, judged = problem.work_s[problem.kind[i]], problem.judged_s[problem.kind[i]]
                others = np.sort(np.delete(work, g))
                start_s = float(problem.ready_s[i]) + np.concatenate(([0.0], np.cumsum(others)))
                if problem.model[g] != problem.active[i]:
                    start_s = start_s + float(np.delete(problem.swap_s[i, :, problem.model[g]], problem.model[g]).min())
                end_s = start_s + judged[g] + (work[g] if which else 0.0)
                over_s = np.maximum(end_s - due_s, 0.0) if np.isfinite(due_s) else np.zeros(n)
                terms |= {int(x[i, g, k]): -float(over_s[k]) for k in range(n) if 0.0 < over_s[k] < np.inf}
            program.row(terms, least=0.0)


def _queue(
    program: _Program, problem: FleetProblem, i: int, x: IntArray, start: IntArray, leave: IntArray, late: IntArray
) -> None:
    """Constraints of one instance; x ``[group, place]``, start and leave ``[place]``."""
    n, kind, active = problem.model.size, problem.kind[i], int(problem.active[i])
    work, judged, own = problem.work_s[kind], problem.judged_s[kind], problem.own_s[kind]
    models = [m for m in np.unique(problem.model).tolist() if problem.swap_s[i, m, m] == 0.0]
    of = {m: np.flatnonzero(problem.model == m) for m in models}
    swap_s = problem.swap_s[i]
    longest_s = float(swap_s[np.isfinite(swap_s)].max(initial=0.0))
    ready_s, drained_s = float(problem.ready_s[i]), max(float(problem.drained_s[i]), float(problem.ready_s[i]))
    # Later than anything can start: what nothing is to bind is relaxed by this.
    big = drained_s + float(work.sum()) + n * (longest_s + problem.min_active_s + float(own.max()))
    for place in range(n):
        here = {int(v): 1.0 for v in x[:, place]}
        program.row(here, most=1.0)
        if place:
            program.row({**here, **{int(v): -1.0 for v in x[:, place - 1]}}, most=0.0)
            program.row(
                {
                    int(start[place]): 1.0,
                    int(start[place - 1]): -1.0,
                    **{int(x[g, place - 1]): -float(work[g]) for g in range(n)},
                },
                least=0.0,
            )
            program.row({int(leave[place]): 1.0, int(leave[place - 1]): -1.0}, least=0.0)
        else:
            program.row({int(start[0]): 1.0}, least=ready_s)
            program.row({int(leave[0]): 1.0}, least=drained_s)
        ends = {int(x[g, place]): -float(work[g] + own[g]) for g in range(n)}
        program.row({int(leave[place]): 1.0, int(start[place]): -1.0, **ends}, least=0.0)
        for g in range(n):
            for which, end_s, due_s in (
                (0, judged[g], problem.first_due_s[g]),
                (1, work[g] + judged[g], problem.last_due_s[g]),
            ):
                if np.isfinite(due_s):
                    terms = {int(late[g, which]): 1.0, int(start[place]): -1.0, int(x[g, place]): -big}
                    program.row(terms, least=float(end_s - due_s) - big)
        for m in models:
            for before in [b for b in (models if place else [active]) if b != m]:
                seconds = float(swap_s[before, m])
                swapped = int(program.variables(1)[0])
                program.price[swapped] = problem.swap_price * seconds
                came = {int(x[g, place]): -1.0 for g in of[m]}
                left = {int(x[g, place - 1]): -1.0 for g in of[before]} if place else {}
                program.row({swapped: 1.0, **came, **left}, least=-1.0 if place else 0.0)
                # It starts once the other model could leave, and the swap is done.
                until = {int(leave[place - 1]): -1.0} if place else {}
                since = -seconds if place else -(drained_s + seconds)
                program.row(
                    {int(start[place]): 1.0, **until, swapped: since - (big if place else 0.0)},
                    least=-big if place else 0.0,
                )
                program.row(
                    {int(leave[place]): 1.0, int(start[place]): -1.0, swapped: -problem.min_active_s}, least=0.0
                )
