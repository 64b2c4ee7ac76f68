"""How long does the annealer take, as in Table 1 of its paper, and what would ten times the moves gain?

Writes results/sa-overhead.json.gz: the kernel alone in µs of wall time, and a whole plan of the policy in µs of thread
CPU time. Sizes are interleaved; medians and p99 of the repeats.
"""

import time
from typing import Any

import numpy as np

from benchmarks.arguments import quick_and_out
from benchmarks.policies.sa_paper import V100, view
from benchmarks.publish import RESULTS, write_result
from sloserve.core.kernels.anneal import Cooling, anneal, exhaustive
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import Rows, State
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.policy import EngineFacts, Snapshot
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.scheduler.sa.policy import SA
from sloserve.scheduler.sa.times import bilinear_of

REPEATS, QUICK_REPEATS = 200, 20
SEEDS = range(10)
SIZES = (4, 6, 8, 10, 40, 100, 1000)
LIMITS = (1, 4, 32)
EXHAUSTIVE_UP_TO = 8
WAITING = (10, 100, 1000, 3000)
POLICIES = ("sa", "sa:length=oracle", "sa-batches")


def tightened(n: int, seed: int) -> Any:
    """The paper's burst; beyond 40 requests with targets in proportion, else nobody could be met but a few."""
    requests = view(n, seed, bilinear_of(load_profile(V100)))
    requests.columns[[6, 8]] *= max(1.0, n / 40)
    return requests


def kernel(repeats: int) -> list[dict[str, Any]]:
    cells = [(n, limit) for n in SIZES for limit in LIMITS]
    requests = {n: [tightened(n, seed) for seed in SEEDS] for n in SIZES}
    spent: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    for repeat in range(repeats):
        for n, limit in cells:
            one = requests[n][repeat % len(SEEDS)]
            began = time.perf_counter()
            anneal(one, limit, seed=repeat)
            spent[n, limit].append(time.perf_counter() - began)
    rows = []
    for n, limit in cells:
        plans = {
            moves: [anneal(one, limit, cooling=Cooling(moves=moves)).goodput for one in requests[n]]
            for moves in (0, 9, 90)
        }
        row = {
            "requests": n,
            "max_batch": limit,
            "us_median": float(np.median(spent[n, limit])) * 1e6,
            "us_p99": float(np.percentile(spent[n, limit], 99)) * 1e6,
            "goodput_of_starts": float(np.mean(plans[0]) / np.mean(plans[90])),
            "goodput": float(np.mean(plans[9]) / np.mean(plans[90])),
        }
        if n <= EXHAUSTIVE_UP_TO:
            began = time.perf_counter()
            best = [exhaustive(one, limit).goodput for one in requests[n]]
            row["exhaustive_us"] = (time.perf_counter() - began) / len(SEEDS) * 1e6
            row["goodput_of_exhaustive"] = float(np.mean(np.array(plans[9]) / best))
        rows.append(row)
    return rows


def snapshot(waiting: int, max_num_seqs: int) -> Snapshot:
    """All slots in use, half chats, half code; lengths and ages of a busy server."""
    rng = np.random.default_rng(waiting)
    rows = Rows(SA.needs)
    for i in range(max_num_seqs + waiting):
        chat, running = bool(rng.random() < 0.5), i < max_num_seqs
        rows.add(
            state=State.RUNNING if running else State.WAITING,
            class_id=int(chat),
            prompt_tokens=int(np.clip(rng.lognormal(6.5, 1.0), 8, 4000)),
            max_tokens=4000,
            oracle_output_tokens=int(np.clip(rng.lognormal(5.0, 0.9), 4, 2000)),
            arrival_s=float(100.0 - 20.0 * rng.random()),
            ttft_s=0.5 if chat else np.nan,
            tpot_s=0.05 if chat else np.nan,
            e2e_s=np.nan if chat else 30.0,
            computed_tokens=4000 if running else 0,
            output_tokens=50 if running else 0,
            first_token_s=95.0 if running else np.nan,
        )
    engine = EngineFacts(20_000, 27_767, KVLayout.full(16), max_num_seqs, 2048, 0)
    return Snapshot(rows, rows.slots_in(State.WAITING), rows.slots_in(State.RUNNING), engine)


def plans(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for name in POLICIES:
        for waiting in WAITING:
            at, policy = snapshot(waiting, 256), make_policy(*parse_policy(name))
            spent = []
            for _ in range(repeats):
                policy.arrived(at.rows, 0, 100.0)
                began = time.thread_time()
                policy.plan(at, 100.0)
                spent.append(time.thread_time() - began)
            spent = spent[5:]
            rows.append(
                {
                    "policy": name,
                    "waiting": waiting,
                    "running": 256,
                    "us_median": float(np.median(spent)) * 1e6,
                    "us_p99": float(np.percentile(spent, 99)) * 1e6,
                }
            )
    return rows


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "sa-overhead.json.gz")
    repeats = QUICK_REPEATS if quick else REPEATS
    of_kernel, of_plans = kernel(repeats), plans(repeats)
    if out is not None:
        write_result(out, {"repeats": repeats, "kernel": of_kernel, "plans": of_plans})
    for row in of_kernel + of_plans:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    main()
