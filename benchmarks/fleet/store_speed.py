"""What does the store of a fleet do in a second, with 400,000 requests in it? SQLite, and PostgreSQL where it is there.

Writes benchmarks/results/store_speed.json. Bodies of 1 kB, 1,000 groups, SQLite in WAL mode with synchronous = FULL,
PostgreSQL with its defaults (fsync on) and over TCP. Rates depend on the disk: both stand on the same one, in turns.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.publish import RESULTS, write_result
from sloserve.fleet.store.records import NewRequest, RequestState, Result
from sloserve.fleet.store.store import Store, open_store

REQUESTS, GROUPS, CLAIMS, PER_CLAIM = 400_000, 1_000, 300, 16
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 900 + b'"}], "max_tokens": 100}'


def requests(begin: int, end: int) -> list[NewRequest]:
    return [
        NewRequest(f"{i:032x}", "t", "m", "batch", i % GROUPS, BODY, 230, 100.0, deadline_s=86_400.0, batch="b")
        for i in range(begin, end)
    ]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def measure(store: Store) -> dict[str, float]:
    figures: dict[str, float] = {}
    began, cpu = time.perf_counter(), time.process_time()
    for start in range(0, REQUESTS, 5_000):
        store.requests.accept(requests(start, start + 5_000))
    figures["accepts_per_s_5000_a_commit"] = REQUESTS / (time.perf_counter() - began)
    figures["accept_client_cpu_us"] = (time.process_time() - cpu) / REQUESTS * 1e6
    single = [timed(lambda i=i: store.requests.accept(requests(REQUESTS + i, REQUESTS + i + 1)))[0] for i in range(200)]
    figures["accept_one_ms_p50"], figures["accept_one_ms_p95"] = quantiles_ms(single)
    claims = [timed(lambda g=g: store.requests.claim("a", g, PER_CLAIM, 3_600.0)) for g in range(CLAIMS)]
    figures["claim_16_ms_p50"], figures["claim_16_ms_p95"] = quantiles_ms([one for one, _ in claims])
    figures["claimed_requests_per_s"] = CLAIMS * PER_CLAIM / sum(one for one, _ in claims)
    figures["renew_all_claims_ms"] = timed(lambda: store.requests.renew("a", 3_600.0))[0] * 1e3
    results = [
        Result(r.id, r.attempt, RequestState.DONE, 200, BODY) for _, claim in claims if claim for r in claim.requests
    ]
    assert len(results) == CLAIMS * PER_CLAIM
    one_by_one = [timed(lambda r=r: store.requests.finish([r])) for r in results[:400]]
    assert all(counted == [True] for _, counted in one_by_one)
    figures["finish_one_ms_p50"], figures["finish_one_ms_p95"] = quantiles_ms([one for one, _ in one_by_one])
    rest = results[400:]
    spent = sum(timed(lambda i=i: store.requests.finish(rest[i : i + 256]))[0] for i in range(0, len(rest), 256))
    figures["finishes_per_s_256_a_commit"] = len(rest) / spent
    assert not any(store.requests.finish(results[:256]))
    figures["sums_of_all_groups_s"] = timed(store.requests.sums)[0]
    figures["counts_of_the_batch_s"] = timed(lambda: store.requests.counts("b"))[0]
    figures["cancel_the_batch_s"] = timed(lambda: store.requests.cancel("b"))[0]
    return figures


def quantiles_ms(seconds: list[float]) -> tuple[float, float]:
    return statistics.median(seconds) * 1e3, statistics.quantiles(seconds, n=20)[18] * 1e3


@contextmanager
def opened(address: str) -> Iterator[Store]:
    store = open_store(address)
    yield store
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", help="postgresql:// address of an empty database; its tables stay there")
    parser.add_argument("--folder", type=Path, help="where SQLite's file lies; a temporary folder by default")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"requests": REQUESTS, "cpus": os.cpu_count(), "stores": {}}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, opened(f"sqlite:{folder}/store.sqlite") as store:
        found["stores"]["sqlite"] = measure(store)
    if arguments.postgres:
        with opened(arguments.postgres) as store:
            found["stores"]["postgresql"] = measure(store)
    else:
        print("NOT MEASURED: PostgreSQL; give --postgres ADDRESS", file=sys.stderr)
    for name in next(iter(found["stores"].values())):
        print(f"{name:32}", *(f"{kind} {figures[name]:12.2f}" for kind, figures in found["stores"].items()))
    write_result(RESULTS / "store_speed.json", found)


if __name__ == "__main__":
    main()
