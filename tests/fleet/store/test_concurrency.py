"""Many at once: no request is served by two who both count, none is lost."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import StoreAway
from sloserve.fleet.store.group_commit import GroupCommit
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import DurableRequest, RequestState, Result
from sloserve.fleet.store.store import Store as OpenStore
from sloserve.fleet.store.store import open_store
from tests import bounded
from tests.fleet.store.databases import Store


def new(id: str) -> DurableRequest:
    return DurableRequest(id, "t", "m", "batch", 1, b"body", batch="b")


@pytest.mark.slow
def test_agents_that_claim_at_once_share_the_queue(store: Store) -> None:
    opened = [OpenStore(store.open()) for _ in range(3)]
    opened[0].requests.accept([new(f"r{i:03}") for i in range(120)])
    got: list[str] = []

    def serve(agent: int) -> None:
        requests = opened[agent].requests
        while claim := requests.claim(str(agent), 1, 4, 30.0):
            results = [Result(r.id, r.attempt, RequestState.DONE, 200, b"") for r in claim.requests]
            assert all(requests.finish(results))
            got.extend(r.id for r in claim.requests)

    threads = [threading.Thread(target=serve, args=(agent,)) for agent in range(3)]
    for thread in threads:
        thread.start()
    with bounded.within("three agents to serve the queue"):
        for thread in threads:
            thread.join()
    # Without waiting for each other's locks an agent may see an empty queue while others still hold rows.
    serve(0)
    assert Counter(got) == Counter(f"r{i:03}" for i in range(120))
    assert opened[0].requests.counts("b") == {RequestState.DONE: 120}


def test_one_of_many_becomes_leader(store: Store) -> None:
    opened = [OpenStore(store.open()) for _ in range(3)]
    terms: list[int | None] = []
    threads = [
        threading.Thread(target=lambda i=i: terms.append(opened[i].members.lead(str(i), 30.0))) for i in range(3)
    ]
    for thread in threads:
        thread.start()
    with bounded.within("three members to ask for the lead"):
        for thread in threads:
            thread.join()
    assert sorted(term is None for term in terms) == [False, True, True]


_WRITER = """
import sys
from sloserve.fleet.store.records import DurableRequest
from sloserve.fleet.store.store import open_store
requests = open_store("sqlite:" + sys.argv[1]).requests
for i in range(1_000_000):
    requests.accept([DurableRequest(f"r{i:06}", "t", "m", "batch", 1, b"body", batch="b")])
    print(i, flush=True)
"""


@pytest.mark.slow
def test_what_was_acknowledged_before_a_kill_is_there(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with (
        bounded.within("a writer's first 50 lines, and its end"),
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer,
    ):
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= 50:
                break
        writer.kill()
        told = 1 + max([int(line), *map(int, writer.stdout.read().split("\n")[:-1])])
    store = open_store(f"sqlite:{path}")
    kept = store.requests.counts("b")[RequestState.QUEUED]
    assert told <= kept <= told + 1
    claim = store.requests.claim("a", 1, told + 1, 30.0)
    assert claim is not None and len(claim.requests) == kept  # each with its body
    store.close()


def test_what_comes_during_a_commit_goes_into_the_next_one_together() -> None:
    commits: list[list[int]] = []
    begun, go_on = threading.Event(), threading.Event()

    def commit(items: list[int]) -> list[int]:
        commits.append(list(items))
        if len(commits) == 1:
            begun.set()
            go_on.wait(20.0)
        if 13 in items:
            raise StoreAway("away")
        return [item * 2 for item in items]

    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            group = GroupCommit(commit, executor)  # type: ignore[arg-type]
            first = asyncio.create_task(group(1))
            await asyncio.to_thread(begun.wait)
            others = [asyncio.create_task(group(i)) for i in (2, 3, 4)]
            await asyncio.sleep(0)
            others[1].cancel()
            go_on.set()
            assert await first == 2
            assert [await others[0], await others[2]] == [4, 8]
            answers = await asyncio.gather(group(13), group(14), return_exceptions=True)
            assert all(isinstance(answer, StoreAway) for answer in answers)
            assert await group(5) == 10

    bounded.run(run())
    assert commits == [[1], [2, 3, 4], [13, 14], [5]]


def test_a_holder_stops_before_its_lease_lapses_whatever_its_wall_clock_says() -> None:
    clock = ManualClock()
    lease = Lease(clock, 30.0)
    assert lease.left_s <= 0
    lease.ask()
    clock.advance_to(clock.now_s() + 4.0)  # the answer took its time; the store's lease began somewhere in it
    lease.granted()
    assert lease.left_s == pytest.approx(20.0)
    clock.set_wall(clock.now_s() - 3600.0)
    assert lease.left_s == pytest.approx(20.0)
    clock.set_wall(clock.now_s() + 7200.0)
    assert lease.left_s == pytest.approx(20.0)
    clock.advance_to(clock.now_s() + 20.5)
    assert lease.left_s < 0
