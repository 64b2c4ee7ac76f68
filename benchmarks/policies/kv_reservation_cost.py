"""What does the reservation of KV blocks take, by request, with 100 to 2,000 live requests?

Usage: python -m benchmarks.policies.kv_reservation_cost [--quick]

Live requests with prompts and outputs as of chats, a tenth of them paused, and as many waiting. The KV cache is so
large that all fit (``roomy``: questions read every step), or holds what the live ones need at their peak (``tight``:
questions end where there is no room). Each operation from Python: one request a call, and all waiting ones in one.
``steps`` is how many future steps one operation reads or writes. Writes results/kv_reservation.json; ``--quick`` writes
nothing.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.publish import RESULTS, write_result
from sloserve.kernels.kv_reservation import FOREVER, KvHosting, KvReservation
from sloserve.lso.blocks import blocks_of

SEED = 0
LIVE = (100, 500, 2000)
REPEATS = 300
BLOCK_SIZE = 16


class LiveLengths:
    """Lengths of n live requests (ids 0 to n - 1) and n waiting ones (from n on)."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self.n = n
        self.ids = np.arange(2 * n)
        self.tokens = np.clip(rng.lognormal(6.0, 1.0, 2 * n), 8, 4000).astype(np.int64)
        self.grow = np.clip(rng.lognormal(5.2, 0.8, 2 * n), 1, 4000).astype(np.int64)
        self.hold = np.where(rng.random(2 * n) < 0.1, FOREVER, 0)
        self.live, self.waiting = slice(0, n), slice(n, 2 * n)
        self.roomy = 4 * int(np.sum(blocks_of(self.tokens + self.grow, BLOCK_SIZE)))
        kept = self.reservation(self.roomy)
        self.tight = self.roomy - min(kept.headroom(step) for step in range(4001))

    def reservation(self, capacity_blocks: int) -> KvReservation:
        """With the live requests in it."""
        kept, live = KvReservation(capacity_blocks, BLOCK_SIZE), self.live
        kept.put(self.ids[live], self.tokens[live], hold_steps=self.hold[live], grow_steps=self.grow[live])
        return kept


def operations(load: LiveLengths, kept: KvReservation, one: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """What to time, and how many requests it deals with; in an order in which each can be repeated."""
    tokens, grow, n = int(load.tokens[one]), int(load.grow[one]), load.n
    new, some = int(load.ids[one]), one % n
    waiting = load.ids[load.waiting], load.tokens[load.waiting], load.grow[load.waiting]
    return {
        "fits, one": (lambda: kept.fits(new, tokens, grow_steps=grow), 1),
        "grantable, one": (lambda: kept.grantable(new, tokens, up_to=grow), 1),
        "fits held for good, one": (lambda: kept.fits(new, tokens, hold_steps=FOREVER), 1),
        "put, one": (lambda: kept.put(new, tokens, grow_steps=grow), 1),
        "remove, one": (lambda: kept.remove(new), 1),
        "put a new prediction, one": (lambda: kept.put(some, tokens, grow_steps=grow), 1),
        "fits, all waiting": (lambda: kept.fits(waiting[0], waiting[1], grow_steps=waiting[2]), n),
        "admit, all waiting": (lambda: kept.admit(waiting[0], waiting[1], grow_steps=waiting[2]), n),
        "first_over": (lambda: kept.first_over(), 1),
        "overrunners": (lambda: kept.overrunners(8), 1),
        "advance": (lambda: kept.advance(kept.now), 1),
    }


def reservation(n: int, roomy: bool) -> list[dict[str, Any]]:
    load = LiveLengths(n, np.random.default_rng(SEED))
    spent: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    for repeat in range(REPEATS):
        kept = load.reservation(load.roomy if roomy else load.tight)
        for name, (call, count) in operations(load, kept, n + repeat % n).items():
            visited, began = kept.visited_steps, time.perf_counter()
            call()
            spent.setdefault(name, []).append((time.perf_counter() - began) / count * 1e6)
            steps.setdefault(name, []).append((kept.visited_steps - visited) / count)
    return [
        {
            "live": n,
            "cache": "roomy" if roomy else "tight",
            "operation": name,
            "us_median": float(np.median(spent[name])),
            "us_p99": float(np.percentile(spent[name], 99)),
            "steps": float(np.mean(steps[name])),
        }
        for name in spent
    ]


def hosting(n: int) -> dict[str, Any]:
    """Half of the live requests get blocks of their own, the other half and all waiting ones look for hosts."""
    load = LiveLengths(n, np.random.default_rng(SEED))
    own, others = slice(0, n // 2), slice(n // 2, 2 * n)
    spent: dict[str, list[float]] = {"allocate": [], "host": [], "remove": []}
    for _ in range(REPEATS):
        spans = KvHosting(load.roomy, BLOCK_SIZE)
        began = time.perf_counter()
        spans.allocate(load.ids[own], load.tokens[own], grow_steps=load.grow[own])
        allocated = time.perf_counter()
        grow = load.grow[others]
        taken, _ = spans.host(load.ids[others], load.tokens[others], grow_steps=grow, buffer_tokens=0.15 * grow)
        hosted = time.perf_counter()
        spans.remove(load.ids[own])
        spent["remove"].append((time.perf_counter() - hosted) / (n // 2) * 1e6)
        spent["host"].append((hosted - allocated) / (2 * n - n // 2) * 1e6)
        spent["allocate"].append((allocated - began) / (n // 2) * 1e6)
    return {"live": n, "guests": taken.size, **{f"{k}_us_median": float(np.median(v)) for k, v in spent.items()}}


def main() -> None:
    quick = "--quick" in sys.argv
    if quick:
        globals().update(LIVE=(10, 40), REPEATS=3)
    result = {
        "reservation": [row for n in LIVE for roomy in (True, False) for row in reservation(n, roomy)],
        "hosting": [hosting(n) for n in LIVE],
    }
    for row in [row for rows in result.values() for row in rows]:
        print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}))
    if quick:
        return
    settings = {"seed": SEED, "repeats": REPEATS, "block_size": BLOCK_SIZE}
    write_result(RESULTS / "kv_reservation.json", {"settings": settings, **result})


if __name__ == "__main__":
    main()
