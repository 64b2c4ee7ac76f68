"""How far is `auto` from the best order? Small instances, whose best order exhaustive search finds.

Where a limit is provable the order of `auto` equals a known rule (tests/scheduler/auto). Elsewhere this measures. An
instance has up to six requests of all kinds of targets and classes, of known lengths, that wait for one to three seats;
steps take the same time, so that a schedule is an order. Its value is what `auto` maximises, worked out from when each
reply begins and ends: good requests, half the QoE of readers (Andes' definition, token by token), and a tenth of the
stretch, weighted by class. Requests without targets are of the least urgent class, since else a rule of classes decides
and not the index. A policy is asked anew whenever a seat is free. The gap is the share of the best value that its order
misses.

Writes results/auto_gap.json.gz: how often each policy finds a best order, and quantiles of its gap, by seats and in
all.

    python -m benchmarks.policies.auto_gap [--instances 500] [--requests 6]
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.qoe import DEFAULT_TDS, DEFAULT_TTFT_S, qoe
from sloserve.core.rows import COLUMNS, Rows, State
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.scheduler.auto.constants import CONSTANTS
from sloserve.scheduler.policy import EngineFacts, Snapshot
from sloserve.scheduler.registry import make_policy, parse_policy

STEP_S: Final = 0.03
PROMPT_TOKENS_A_STEP: Final = 1024
BLOCK, BLOCKS = 16, 100_000
POLICIES: Final = ("fcfs", "sjf:length=oracle", "edf", "econo:length=oracle", "auto:length=oracle:preempt=false")
QUANTILES: Final = (0.5, 0.75, 0.9, 0.95, 1.0)
SEATS: Final = (1, 2, 3)
LEAST_URGENT: Final = 2


class Steps:
    """Decodes cost nothing beside the weights; prompts take their steps alone."""

    def step_s(self, load: StepLoad) -> float:
        return STEP_S

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        return PROMPT_TOKENS_A_STEP if seconds >= STEP_S else 0


STEPS: Final = Steps()


@dataclass(frozen=True)
class One:
    """A request: seconds since it arrived, tokens, targets in seconds (nan where there is none), class."""

    age_s: float
    prompt: int
    output: int
    ttft_s: float
    tpot_s: float
    tds: float
    e2e_s: float
    rank: int

    @property
    def prefill_s(self) -> float:
        return STEP_S * self.prompt / PROMPT_TOKENS_A_STEP

    @property
    def serve_s(self) -> float:
        return self.prefill_s + STEP_S * self.output

    def value(self, starts_s: float) -> float:
        """What it is worth if it is served from then on, without a pause."""
        first_s = self.age_s + starts_s + self.prefill_s
        ends_s = self.age_s + starts_s + self.serve_s
        reads = not np.isnan([self.ttft_s, self.tpot_s, self.tds]).all()
        promised = reads or not np.isnan(self.e2e_s)
        # No pace is shorter than a step here, so only the first token and the end can be late.
        good = promised and not (first_s > self.ttft_s or ends_s > self.e2e_s)
        ttft_s = DEFAULT_TTFT_S if np.isnan(self.ttft_s) else self.ttft_s
        tds = np.fmax(self.tds, 1.0 / self.tpot_s)
        seen = 0.0
        if reads:
            times = first_s + STEP_S * np.arange(self.output)
            seen = qoe(times, ttft_s=ttft_s, tds=DEFAULT_TDS if np.isnan(tds) else float(tds))
        streamed = ttft_s + (0.0 if np.isnan(tds) else self.output / float(tds)) if reads else CONSTANTS.unhurried_s
        target = streamed if np.isnan(self.e2e_s) else self.e2e_s
        stretch = target / (target + ends_s)
        worth = good + CONSTANTS.experience * seen + CONSTANTS.stretch * stretch
        return float(CONSTANTS.class_weight**self.rank * worth)


def drawn(rng: np.random.Generator, n: int, seats: int) -> list[One]:
    """Targets are such that about half of them can be kept."""
    nan = np.nan
    outputs = rng.lognormal(5.0, 0.8, n).astype(int) + 1
    prompts = rng.lognormal(6.5, 1.2, n).astype(int) + 1
    ends_s = STEP_S * float(outputs.sum() + prompts.sum() / PROMPT_TOKENS_A_STEP) / seats
    found = []
    for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True):
        lax = float(rng.uniform(0.1, 1.0)) * ends_s
        kind = int(rng.choice(4, p=(0.35, 0.25, 0.3, 0.1)))
        targets = [
            (lax, nan, 4.8, nan),  # a reader
            (lax, 0.2, nan, nan),  # a first token and a pace
            (nan, nan, nan, lax + STEP_S * output),  # a deadline
            (nan, nan, nan, nan),
        ][kind]
        rank = LEAST_URGENT if kind == 3 else int(rng.integers(LEAST_URGENT + 1))
        found.append(One(float(rng.uniform(0.0, 0.3)), prompt, output, *targets, rank))
    return found


def value(requests: Sequence[One], order: Sequence[int], seats: int) -> float:
    """Returns the summed value of serving the requests in this order, each from when a seat is free."""
    free_s, total = [0.0] * seats, 0.0
    for i in order:
        at = free_s.index(min(free_s))
        total += requests[i].value(free_s[at])
        free_s[at] += requests[i].serve_s
    return total


def best(requests: Sequence[One], seats: int) -> float:
    """By trying every order; what a request is worth depends on its start alone, so parts are shared."""
    found = 0.0

    def go_on(left: tuple[int, ...], free_s: tuple[float, ...], so_far: float) -> None:
        nonlocal found
        if not left:
            found = max(found, so_far)
            return
        for k, i in enumerate(left):
            after = tuple(sorted((free_s[0] + requests[i].serve_s, *free_s[1:])))
            go_on(left[:k] + left[k + 1 :], after, so_far + known(i, free_s[0]))

    values: dict[tuple[int, float], float] = {}

    def known(i: int, starts_s: float) -> float:
        if (i, starts_s) not in values:
            values[i, starts_s] = requests[i].value(starts_s)
        return values[i, starts_s]

    go_on(tuple(range(len(requests))), (0.0,) * seats, 0.0)
    return found


def chosen(policy: str, requests: Sequence[One], seats: int) -> list[int]:
    """The order in which the policy serves them, asked anew at each seat that is free."""
    made = make_policy(*parse_policy(policy))
    rows, now_s = Rows(frozenset(COLUMNS)), 1000.0
    slots: list[int] = []
    for one in requests:
        values: dict[str, Any] = {"arrival_s": now_s - one.age_s, "prompt_tokens": one.prompt, "class_rank": one.rank}
        values |= {"max_tokens": one.output, "oracle_output_tokens": one.output, "class_id": one.rank}
        values |= {name: getattr(one, name) for name in ("ttft_s", "tpot_s", "tds", "e2e_s")}
        slots.append(rows.add(**values))
        made.arrived(rows, slots[-1], now_s)
    starts_s: dict[int, float] = {}
    free_s = [0.0] * seats
    while len(starts_s) < len(requests):
        seat = free_s.index(min(free_s))
        for i, began_s in starts_s.items():
            _progress(rows, slots[i], requests[i], free_s[seat] - began_s, now_s + began_s)
        waiting, running = rows.slots_in(State.WAITING), rows.slots_in(State.RUNNING)
        free = BLOCKS - int(rows.kv_blocks[running].sum())
        facts = EngineFacts(
            free, BLOCKS, KVLayout.full(BLOCK), seats, PROMPT_TOKENS_A_STEP, seats - running.size, step_latency=STEPS
        )
        order = made.plan(Snapshot(rows, waiting, running, facts), now_s + free_s[seat]).waiting
        head = slots.index(int(waiting[0] if order is None else order[0]))
        starts_s[head] = free_s[seat]
        free_s[seat] += requests[head].serve_s
    return list(starts_s)


def _progress(rows: Rows, slot: int, one: One, served_s: float, began_s: float) -> None:
    """A request after it was served for so long."""
    rows.state[slot] = State.FREE if served_s >= one.serve_s else State.RUNNING
    rows.computed_tokens[slot] = min(int(served_s / STEP_S * PROMPT_TOKENS_A_STEP), one.prompt)
    if served_s > one.prefill_s:
        done = rows.output_tokens[slot] = min(int((served_s - one.prefill_s) / STEP_S) + 1, one.output)
        rows.computed_tokens[slot] = one.prompt + done - 1
        rows.first_token_s[slot] = began_s + one.prefill_s
    rows.kv_blocks[slot] = -(-int(rows.computed_tokens[slot]) // BLOCK)


def measured(instances: int, most: int) -> list[dict[str, Any]]:
    """The gap of each policy in each instance."""
    found = []
    for seed in range(instances):
        rng = np.random.default_rng([seed, 77])
        seats = SEATS[seed % len(SEATS)]
        requests = drawn(rng, int(rng.integers(3, most + 1)), seats)
        top = best(requests, seats)
        row: dict[str, Any] = {"seats": seats}
        for policy in POLICIES:
            row[policy] = 1.0 - value(requests, chosen(policy, requests, seats), seats) / top
        found.append(row)
    return found


def quantiles(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"instances": len(rows)}
    for policy in POLICIES:
        gaps = np.array([row[policy] for row in rows])
        at = {f"p{100 * q:.0f}": round(float(np.quantile(gaps, q)), 4) for q in QUANTILES}
        found[policy] = {"best": round(float((gaps < 1e-9).mean()), 3), "mean": round(float(gaps.mean()), 4), **at}
    return found


def main() -> None:
    args = parser_for(__doc__, instances=500, requests=6).parse_args()
    rows = measured(args.instances, args.requests)
    found = {"all": quantiles(rows)}
    found |= {f"seats_{n}": quantiles([row for row in rows if row["seats"] == n]) for n in SEATS}
    write_result(RESULTS / "auto_gap.json.gz", {"requests": args.requests, **found})
    print(json.dumps(found["all"], indent=1))


if __name__ == "__main__":
    main()
