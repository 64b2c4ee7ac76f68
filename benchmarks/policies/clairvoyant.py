"""A plan for requests that are all known beforehand, found by local search on the engine model: what can be reached.

A plan (:class:`Timetable`) names the requests that are served; all others are given up: they are served once these
have ended, and count as late. Either it has an order that never changes, says how many tokens a step may compute, by
parts of the run, and which requests give way to earlier ones when KV is short; or a policy orders those that are
served. The engine model carries it out by vLLM's rules, with ageing off and planning free. So its share of requests in
time is one that a schedule reaches: a lower bound on what is possible, though no search says that there is no better
one.

The search begins with the plans that the policies' own runs suggest, and those of the linear program's solution
(``ceiling_bound.py``): their requests in time, in the policy's order, or that of first tokens, arrivals, or last
moments of the first token. It changes one thing at a time, and keeps what has more requests in time, or as many with
more QoE. The same seed gives the same plan.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.policies.ceiling_bound import last_moments_s
from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import Rows
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import Profile
from sloserve.lso.decode_first import unfinished
from sloserve.lso.forecast import AHEAD, OCCUPANCY_COLUMNS, how_many_fit_to_the_end
from sloserve.lso.lengths import Lengths
from sloserve.lso.ordering import PREEMPTION_COLUMNS, PreemptionRule, plan_by_key
from sloserve.scheduler.policy import EngineFacts, Plan, Policy, Snapshot
from sloserve.scheduler.registry import parse_policy, policy_class
from sloserve.sim.model.engine import ModelEngine

PIECES = 8
"""Parts of the time of arrivals, and one for what comes after, each with a step size of its own."""
SIZES = (256, 384, 512, 768, 1024, 1536, 2048)
VARIANTS = ((2048, True, True), (2048, True, False), (2048, False, False), (512, False, True))
"""Step size, whether the step budget's rule limits steps too, and whether admission foresees KV, of first plans."""
WALKS = 3
"""First plans from which the search walks a little, of both kinds; then it goes on with the best."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """order: indices of the requests that are served, first served first. sizes: ``[PIECES + 1]``, tokens of a step.
    by_rule: whether the step budget's rule limits steps as well. gives_way: those that may be preempted for earlier
    ones.
    foresees: whether only those are admitted that the KV cache holds to their end. policy: decides order and victims
    among the requests that are served, with steps of the first size; empty: all of the above holds.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...] = (SIZES[-1],) * (PIECES + 1)
    by_rule: bool = True
    gives_way: frozenset[int] = frozenset()
    foresees: bool = True
    policy: str = ""


class Value(NamedTuple):
    """What a plan is worth, compared in this order. in_time: requests. experience: summed QoE of all with a reader; of
    others target / (target + latency).
    """

    in_time: int
    experience: float


class Clairvoyant(Policy):
    """Carries out a timetable. places: of the request that arrives as the n-th, in the order of service."""

    needs = PREEMPTION_COLUMNS | OCCUPANCY_COLUMNS | {"arrival_s"}

    def __init__(self, table: Timetable, requests: Sequence[WorkloadRequest]) -> None:
        super().__init__(Policy.Settings(step_budget=table.by_rule))
        self._table = table
        served = sorted(table.order)
        place = {index: float(at) for at, index in enumerate(table.order)}
        self._place = np.array([place[index] for index in served])
        # Before all that wait, where it does not give way.
        never = float(len(served))
        self._running = self._place - np.array([0.0 if index in table.gives_way else never for index in served])
        self._lengths = Lengths("oracle", seed=0)
        self._rule = PreemptionRule() if table.gives_way else None
        self._first_s, self._span_s = requests[served[0]].arrival_s, max(requests[-1].arrival_s, 1e-9)
        self._epoch_s: float | None = None
        self._has_prompts = True

    @property
    def lengths(self) -> Lengths:
        return self._lengths

    def is_idle(self, waiting: int, running: int, engine: EngineFacts) -> bool:
        return not (waiting or self._has_prompts) and engine.has_room_for(running)

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._has_prompts = True
        if self._epoch_s is None:
            self._epoch_s = float(rows.arrival_s[slot]) - self._first_s

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, table = snapshot.rows, self._table
        waiting, running = snapshot.waiting, snapshot.running
        found = plan_by_key(
            snapshot, self._place[rows.seq[waiting]], self._running[rows.seq[running]], preempt=self._rule
        )
        stay = running[~np.isin(running, found.preempt)]
        self._has_prompts = bool(waiting.size or found.preempt.size or unfinished(rows, stay).any())
        piece = int((now_s - (self._epoch_s or 0.0)) / self._span_s * PIECES)
        size = table.sizes[min(max(piece, 0), PIECES)]
        most = None
        if table.foresees and waiting.size and found.waiting is not None:
            most = max(stay.size + self._fit(snapshot, stay, found.waiting), 1)
        return replace(found, token_budget=size, max_running=most)

    def _fit(self, snapshot: Snapshot, running: IntArray, waiting: IntArray) -> int:
        rows, engine = snapshot.rows, snapshot.engine
        slots = np.concatenate((waiting, running))
        runs = self._lengths.chances(rows, slots, AHEAD)
        context = rows.prompt_tokens[slots] + rows.output_tokens[slots]
        places = np.arange(slots.size)
        asked, held = places[: waiting.size], places[waiting.size :]
        return how_many_fit_to_the_end(runs, context, engine.layout, held, asked, engine.total_blocks, 0.0)


@dataclass(slots=True)
class Search:
    """Values of timetables for one engine and one set of requests, ascending by arrival.

    classes: settings of the classes. on_run: called after each run.
    """

    requests: Sequence[WorkloadRequest]
    settings: EngineSettings
    profile: Profile
    classes: Mapping[str, Any]
    on_run: Callable[[], None] = lambda: None
    runs: int = 0
    known: dict[Timetable, tuple[Value, frozenset[int]]] = field(default_factory=dict)

    def carry_out(self, table: Timetable) -> RunLog:
        """The run of those that the table serves."""
        config = {"sloserve": {"policy": table.policy or "fcfs", "aged_share": 0.0, **self.classes}}
        policy, settings = None, self.settings
        if table.policy:
            settings = replace(settings, max_num_batched_tokens=min(table.sizes[0], settings.max_num_batched_tokens))
        else:
            policy = Clairvoyant(table, self.requests)
        engine = ModelEngine(settings, self.profile, config, policy=policy)
        return engine.run([self.requests[i] for i in sorted(table.order)])

    def value(self, table: Timetable) -> tuple[Value, frozenset[int]]:
        """What it is worth, and which requests are in time."""
        if not table.order:
            return Value(0, 0.0), frozenset()
        if table not in self.known:
            logs = dict(zip(sorted(table.order), self.carry_out(table).requests, strict=True))
            self.runs += 1
            self.on_run()
            good = frozenset(i for i, log in logs.items() if log.good)
            self.known[table] = Value(len(good), round(sum(map(experience, logs.values())), 6)), good
        return self.known[table]

    def best_of(self, tables: Iterable[Timetable]) -> list[Timetable]:
        """Best first; equals in their order."""
        found = list(dict.fromkeys(tables))
        return sorted(found, key=lambda table: self.value(table)[0], reverse=True)

    def improve(self, table: Timetable, runs: int, seed: int) -> Timetable:
        """The best plan of a walk from ``table`` of so many runs."""
        rng = np.random.default_rng(seed)
        last, tries = self.runs + runs, 0
        while self.runs < last and tries < 4 * runs:
            tries += 1
            changed = self._changed(table, rng)
            if self.value(changed)[0] >= self.value(table)[0]:
                table = changed
        return table

    def _changed(self, table: Timetable, rng: np.random.Generator) -> Timetable:
        """``table`` with one move, and mostly without those that are late."""
        good = self.value(table)[1]
        order = list(table.order)
        if rng.random() < 0.7:
            order = [index for index in order if index in good]
        left_out = [i for i, one in enumerate(self.requests) if one.slo.targets and i not in order]
        if table.policy:
            return self._changed_set(table, order, left_out, rng)
        kind = rng.choice(6, p=(0.4, 0.15, 0.2, 0.05, 0.1, 0.1))
        if not order or (kind <= 1 and left_out):
            added = self._draw(left_out, rng)
            if kind == 1 and order:
                order.remove(self._draw(order, rng, most=True))
            # Before the first that arrives later, or up to a quarter of all places from there.
            near = sum(self.requests[i].arrival_s <= self.requests[added].arrival_s for i in order)
            shift = int(rng.normal(0.0, max(len(order) / 8, 2.0)))
            order.insert(min(max(near + shift, 0), len(order)), added)
            return replace(table, order=tuple(order))
        if kind <= 2:
            at, to = (int(x) for x in rng.integers(len(order), size=2))
            order[at], order[to] = order[to], order[at]
            return replace(table, order=tuple(order))
        if kind == 3 and rng.random() < 0.5:
            return replace(table, order=tuple(order), by_rule=not table.by_rule)
        if kind == 3:
            return replace(table, order=tuple(order), foresees=not table.foresees)
        if kind == 4:
            sizes = list(table.sizes)
            sizes[int(rng.integers(PIECES + 1))] = int(rng.choice(SIZES))
            return replace(table, order=tuple(order), sizes=tuple(sizes))
        one = frozenset([order[int(rng.integers(len(order)))]])
        return replace(table, order=tuple(order), gives_way=table.gives_way ^ one)

    def _changed_set(
        self, table: Timetable, order: list[int], left_out: list[int], rng: np.random.Generator
    ) -> Timetable:
        """A move of a table whose order is a policy's: who is served, and in steps of which size."""
        kind = rng.choice(3, p=(0.6, 0.3, 0.1))
        if kind == 2:
            return replace(table, order=tuple(order), sizes=(int(rng.choice(SIZES)),) * (PIECES + 1))
        if order and (kind == 1 or not left_out):
            order.remove(self._draw(order, rng, most=True))
        if left_out:
            order.append(self._draw(left_out, rng))
        return replace(table, order=tuple(sorted(order)))

    def _draw(self, among: Sequence[int], rng: np.random.Generator, *, most: bool = False) -> int:
        """One of these, rather one that takes little of the engine, or much of it."""
        work = np.array([work_of(self.requests[i], self.profile) for i in among])
        weight = work if most else 1.0 / work
        return int(rng.choice(among, p=weight / weight.sum()))


def work_of(one: WorkloadRequest, profile: Profile) -> float:
    """Tokens x steps in the KV cache, its prompt's as if it were computed at 40 tokens an output token's time."""
    return (one.prompt_tokens + one.output_tokens / 2.0) * (one.output_tokens + one.prompt_tokens / 40.0)


def experience(log: RequestLog) -> float:
    """0..1: QoE where there is a reader, else target / (target + latency), 0 without a target."""
    if log.qoe is not None:
        return log.qoe
    target_s = log.asked.targets.e2e_s
    return 0.0 if target_s is None or log.latency is None else target_s / (target_s + log.latency.e2e_s)


def first_plans(requests: Sequence[WorkloadRequest], good: Iterable[int], begun_s: FloatArray) -> list[Timetable]:
    """Plans that serve ``good`` alone, by when each began (``[n]``), by arrival, and by last moments."""
    chosen = list(good)
    due_s = [last_moments_s(one)[0] for one in requests]
    orders = (
        sorted(chosen, key=lambda i: (begun_s[i], i)),
        sorted(chosen),
        sorted(chosen, key=lambda i: (due_s[i], i)),
    )
    return [
        Timetable(tuple(order), sizes=(size,) * (PIECES + 1), by_rule=by_rule, foresees=foresees)
        for order in dict.fromkeys(map(tuple, orders))
        for size, by_rule, foresees in VARIANTS
    ]


def plans_of_run(log: RunLog, policy: str) -> list[Timetable]:
    """First plans that a run of ``policy`` suggests: the policy's own order for those in time, as it is and with
    lengths known, and for all; then orders that never change.
    """
    begun_s = np.array([np.inf if r.first_token_s is None else r.first_token_s for r in log.requests])
    good = [i for i, one in enumerate(log.requests) if one.good]
    names = [policy]
    if "length" in {option.name for option in fields(policy_class(parse_policy(policy)[0]).Settings)}:
        names.append(f"{policy}:length=oracle")
    own = [Timetable(tuple(good), policy=name) for name in names]
    own += [Timetable(tuple(range(len(log.requests))), policy=name) for name in names]
    return own + first_plans([one.request for one in log.requests], good, begun_s)


def found_plan(search: Search, firsts: Sequence[Sequence[Timetable]], runs: int, seed: int) -> Timetable:
    """The best plan that ``runs`` runs find, those for the first plans among them.

    firsts: of each run that suggests some, best first; of all but the best three runs, the first plan alone is tried.
    """
    last = search.runs + runs
    tables = [table for at, some in enumerate(firsts) for table in (some if at < WALKS else some[:1])]
    best = search.best_of(tables)
    # One of each kind, and the best of the rest.
    kinds = [next((table for table in best if bool(table.policy) == by_policy), best[0]) for by_policy in (True, False)]
    best = list(dict.fromkeys([*kinds, *best]))[:WALKS]
    share = max((last - search.runs) // (2 * WALKS), 1)
    best = search.best_of([*best, *(search.improve(table, share, seed + at) for at, table in enumerate(best))])
    return search.best_of([best[0], search.improve(best[0], max(last - search.runs, 1), seed + WALKS)])[0]
