"""Gateways that advance one batch at once, and clients that ask at once: on SQLite and on PostgreSQL."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sloserve.core.errors import StoreAway
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.batch_api.json_objects import batch_json
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.store.batches import Batches
from sloserve.fleet.store.records import Batch, BatchState, DurableRequest, File, RequestState, Result
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.store.store import Store as OpenStore
from tests import bounded
from tests.fleet.store.databases import Store

URL = "/v1/completions"
T = TypeVar("T")


class Fleet:
    """Two gateways with a store each, and one folder."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.stores = OpenStore(store.open()), OpenStore(store.open())
        self.store, self.pass_s = self.stores[0], store.pass_s
        self.folder = Folder(folder / "files")
        self.first, self.second = self.gateways = [
            BatchRunner(one, self.folder, lambda tenant: {"m"}, lambda batch, line: 0) for one in self.stores
        ]

    def file(self, lines: int) -> str:
        file = ids.new_file()
        with self.folder.writing(file) as written:
            written.writelines(line(i) + b"\n" for i in range(lines))
        self.store.batches.add_file(File(file, "t", "in", "batch", 100, 0.0))
        return file

    def batch(self, lines: int) -> str:
        file, id = self.file(lines), ids.new_batch()
        self.store.batches.add(Batch(id, "t", URL, "1h", file, BatchState.VALIDATING, {}, 0.0), 3_600.0)
        return id

    def get(self, id: str) -> Batch:
        found = self.store.batches.get("t", id)
        assert found is not None
        return found

    def steps(self, *runners: BatchRunner) -> None:
        """Run these runners' steps by turns until no batch moves."""
        with bounded.within("the end of all batches"):
            while any([runner.step() for runner in runners or self.gateways]):
                pass

    def claim(self, most: int = 1_000) -> list[Any]:
        claim = self.store.requests.claim("agent", 0, most, 30.0)
        return [] if claim is None else list(claim.requests)

    def errors(self, batch: Batch) -> list[dict[str, Any]]:
        assert batch.error_file is not None
        file = self.folder.open(batch.error_file)
        assert file is not None
        with file:
            return [json.loads(one) for one in file]


@pytest.fixture
def fleet(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr("sloserve.fleet.batch_api.runner._SLICE_LINES", 4)
    return Fleet(store, tmp_path)


def line(number: int) -> bytes:
    body = {"model": "m", "prompt": "x", "max_tokens": 1}
    return json.dumps({"custom_id": f"c{number}", "method": "POST", "url": URL, "body": body}).encode()


def partly_accepted(fleet: Fleet, batch: str) -> None:
    """The first gateway has accepted a slice of the batch, and is killed."""
    with bounded.within("the first accepted lines"):
        while not fleet.store.requests.counts(batch):
            fleet.first.step()


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False], ids=["another has ended it", "it is being cancelled"])
def test_lines_of_a_batch_that_is_cancelled_meanwhile_are_not_accepted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """The slice was on its way into the store, and its lines were run for nobody: 1,000 of a batch of 5,000."""
    batch, accept, calls = fleet.batch(12), fleet.stores[0].requests.accept, list[int]()

    def late(requests: Any, *given: Any) -> int:
        calls.append(len(requests))
        if len(calls) == 2:
            assert fleet.store.batches.move(batch, BatchState.VALIDATING, BatchState.CANCELLING)
            if ended:
                fleet.steps(fleet.second)
                assert fleet.get(batch).state is BatchState.CANCELLED
        return accept(requests, *given)

    monkeypatch.setattr(fleet.stores[0].requests, "accept", late)
    fleet.steps()
    assert fleet.get(batch).state is BatchState.CANCELLED and len(calls) == 2
    assert fleet.claim() == [] and fleet.store.requests.counts(batch) == {RequestState.CANCELLED: 4}


def test_nothing_is_accepted_unless_its_batch_is_validated(fleet: Fleet) -> None:
    for state in (None, *BatchState):
        batch = ids.new_batch() if state is None else fleet.batch(1)
        if state not in (None, BatchState.VALIDATING):
            assert fleet.store.batches.move(batch, BatchState.VALIDATING, state)
        request = DurableRequest(ids.request_of(batch, 1), "t", "m", "batch", 0, b"{}", batch=batch)
        assert fleet.store.requests.accept([request], batch, 1) == (state is BatchState.VALIDATING), state


def test_a_batch_that_fails_after_lines_of_it_were_accepted_runs_none_of_them(fleet: Fleet) -> None:
    """A gateway was killed, the file was deleted, and the accepted lines of the failed batch were run."""
    batch = fleet.batch(12)
    partly_accepted(fleet, batch)
    assert len(fleet.claim(2)) == 2
    assert fleet.store.batches.delete_file("t", fleet.get(batch).input_file)
    fleet.folder.delete(fleet.get(batch).input_file)
    fleet.second.step()
    assert fleet.claim() == [], "those that waited are cancelled"
    seen = batch_json(fleet.get(batch))
    assert (seen["status"], seen["errors"], seen["cancelling_at"]) == ("validating", None, None)
    fleet.pass_s(31.0)  # the agent dies: its claim lapses, and nobody else gets the lines
    fleet.second.step()
    assert fleet.claim() == []
    fleet.steps(fleet.second)
    seen = batch_json(fleet.get(batch))
    assert (seen["status"], seen["cancelling_at"], seen["request_counts"]["total"]) == ("failed", None, 0)
    assert seen["failed_at"] and [one["code"] for one in seen["errors"]["data"]] == ["file_not_found"]
    assert fleet.store.requests.counts(batch) == {}


def test_a_failing_batch_is_ended_by_another_gateway(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = fleet.batch(12)
    partly_accepted(fleet, batch)
    fleet.folder.delete(fleet.get(batch).input_file)
    fleet.store.batches.delete_file("t", fleet.get(batch).input_file)

    def away(self: Requests, batch: str) -> Any:
        raise StoreAway("away")

    with monkeypatch.context() as crash:
        crash.setattr(Requests, "cancel", away)
        with pytest.raises(StoreAway):
            fleet.second.step()
    fleet.steps(fleet.first)
    assert fleet.get(batch).state is BatchState.FAILED and fleet.claim() == []


def test_a_batch_cancelled_while_its_lines_are_accepted_accounts_for_all_of_them(fleet: Fleet) -> None:
    """It had 1,000 of 5,000 lines, and the error file did not have the others."""
    batch = fleet.batch(11)
    partly_accepted(fleet, batch)
    assert fleet.get(batch).lines == 11
    done = [Result(one.id, one.attempt, RequestState.DONE, 200, b"{}") for one in fleet.claim(1)]
    assert fleet.store.requests.finish(done) == [True]
    assert fleet.store.batches.move(batch, BatchState.VALIDATING, BatchState.CANCELLING)
    fleet.steps()
    ended = fleet.get(batch)
    assert (ended.state, ended.lines, ended.completed, ended.failed) == (BatchState.CANCELLED, 11, 1, 10)
    rows = fleet.errors(ended)
    assert [row["custom_id"] for row in rows] == [f"c{i}" for i in range(1, 11)]
    assert {row["error"]["code"] for row in rows} == {"batch_cancelled"} and len({row["id"] for row in rows}) == 10


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [True, False])
def test_lines_that_were_never_accepted_need_the_file_to_be_accounted_for(fleet: Fleet, deleted: bool) -> None:
    batch = fleet.batch(11)
    partly_accepted(fleet, batch)
    fleet.store.batches.move(batch, BatchState.VALIDATING, BatchState.CANCELLING)
    fleet.folder.delete(fleet.get(batch).input_file)
    if deleted:
        fleet.store.batches.delete_file("t", fleet.get(batch).input_file)
    fleet.steps()
    if not deleted:
        assert fleet.get(batch).state is BatchState.CANCELLING, "another gateway may have it"
        fleet.pass_s(3_601.0)
        fleet.steps()
    ended = fleet.get(batch)
    assert (ended.state, ended.lines, ended.failed) == (BatchState.CANCELLED, 4, 4)
    assert len(fleet.errors(ended)) == 4


def test_a_batch_cancelled_before_its_lines_are_accepted_has_none(fleet: Fleet) -> None:
    batch = fleet.batch(12)
    fleet.first.step()
    fleet.store.batches.move(batch, BatchState.VALIDATING, BatchState.CANCELLING)
    fleet.steps()
    ended = fleet.get(batch)
    assert (ended.state, ended.lines, ended.failed, ended.error_file) == (BatchState.CANCELLED, 0, 0, None)


def at_once(fleet: Fleet, call: Callable[[Batches], T]) -> list[T]:
    """What 16 calls return that two gateways make at once."""
    with bounded.within("the end of the calls"), ThreadPoolExecutor(8) as threads:
        return list(threads.map(call, [store.batches for store in fleet.stores] * 8))


@pytest.mark.slow
def test_a_tenant_gets_no_more_batches_than_its_quota_by_asking_at_once(fleet: Fleet) -> None:
    """Of 40 requests to two gateways, with a quota of 3, all 40 made a batch."""

    def create(batches: Batches) -> BatchState | None:
        new = Batch(ids.new_batch(), "t", URL, "1h", "file", BatchState.UNCONFIRMED, {}, 0.0)
        return batches.confirm(batches.add(new, 3_600.0), 3)

    states = at_once(fleet, create)
    assert sorted(map(str, states)) == ["unconfirmed"] * 13 + ["validating"] * 3
    assert fleet.store.batches.count("t") == (3, 16)
    for batch in fleet.store.batches.unconfirmed():
        fleet.store.batches.withdraw(batch.id)
    assert fleet.store.batches.count("t") == (3, 3)
    gone = Batch(ids.new_batch(), "t", URL, "1h", "file", BatchState.UNCONFIRMED, {}, 0.0)
    assert fleet.store.batches.confirm(gone, 9) is None


@pytest.mark.slow
def test_a_tenant_gets_no_more_bytes_than_its_quota_by_uploading_at_once(fleet: Fleet) -> None:
    """Eight uploads of 0.9 MB, with a quota of 1 MB, were all kept."""

    def reserve(batches: Batches) -> bool:
        return batches.reserve_file(File(ids.new_file(), "t", "gateway", "", 100_000, 0.0), 350_000, 60.0)

    assert sum(at_once(fleet, reserve)) == 3 and fleet.store.batches.bytes_of("t") == 300_000

    first, second, third = (file.id for file in fleet.store.batches.reserved_files())
    sizes = iter([first, second] * 8)
    resized = at_once(fleet, lambda batches: batches.resize_file(next(sizes), 140_000, 350_000))
    assert any(resized) and fleet.store.batches.bytes_of("t") == 340_000, "there is room for one of them"
    assert fleet.store.batches.resize_file(third, 1, 350_000) and fleet.store.batches.bytes_of("t") == 244_096
    assert not fleet.store.batches.resize_file("missing", 1, 350_000)


def test_a_reserved_file_is_seen_once_it_is_kept(fleet: Fleet) -> None:
    batches, new = fleet.store.batches, File(ids.new_file(), "t", "in", "batch", 10, 0.0)
    assert batches.reserve_file(replace(new, name="gateway"), 10_000, 60.0)
    assert batches.file("t", new.id) is None and batches.files("t") == [] and batches.is_file(new.id)
    assert batches.resize_file(new.id, 10, 10_000)
    kept = batches.keep_file(new)
    assert kept is not None and kept == batches.file("t", new.id) and batches.files("t") == [kept]
    assert (kept.name, kept.purpose, kept.bytes, kept.expires_s) == ("in", "batch", 10, None)
    assert batches.keep_file(new) is None and batches.reserved_files() == []
    assert not batches.resize_file(new.id, 20, 10_000), "it is no reservation any more"


def half_file_of(fleet: Fleet, member: str) -> Path:
    """What this member leaves when it is killed while it writes a file."""
    path = fleet.folder._path
    half = path / f"{ids.new_file()}.{Folder(path, member)._holder}.{'0' * 8}.part"
    half.write_bytes(b"x")
    return half


def test_reservations_of_gateways_that_are_gone_are_given_back(fleet: Fleet) -> None:
    members, batches = fleet.store.members, fleet.store.batches
    for name in ("alive", "dead", "left", ""):
        if name not in ("left", ""):
            members.beat(name, {})
        id = ids.new_file()
        assert batches.reserve_file(File(id, "t", name, "", 10_000, 0.0), 100_000, 3_600.0)
        with fleet.folder.writing(id) as file:
            file.write(b"x")
    halves = {name: half_file_of(fleet, name) for name in ("alive", "dead", "left")}
    fleet.pass_s(31.0)
    members.beat("alive", {})
    fleet.first.tidy()
    assert {file.name for file in batches.reserved_files()} == {"alive", ""}
    assert [name for name, half in halves.items() if half.exists()] == ["alive"]
    halves["alive"].unlink()
    assert batches.bytes_of("t") == 20_000
    fleet.pass_s(3_600.0)
    fleet.first.tidy()
    assert batches.reserved_files() == [] and batches.bytes_of("t") == 0, "no upload takes so long"
    assert list(fleet.folder._path.iterdir()) == []


def test_no_member_counts_as_gone_because_the_store_was_away(fleet: Fleet) -> None:
    """The first gateway that reaches the store again would cut off the uploads to all others."""
    for name in ("first", "other"):
        fleet.store.members.beat(name, {})
    assert fleet.store.batches.reserve_file(File(ids.new_file(), "t", "other", "", 1, 0.0), 100_000, 3_600.0)
    half = half_file_of(fleet, "other")
    fleet.pass_s(120.0)
    fleet.store.members.beat("first", {})
    replace(fleet.first, member="first").tidy()
    assert half.exists() and len(fleet.store.batches.reserved_files()) == 1


def test_files_are_listed_by_purpose_and_in_both_orders(fleet: Fleet) -> None:
    for i, purpose in enumerate(("batch", "batch_output") * 2):
        fleet.store.batches.add_file(File(f"f{i}", "t", "", purpose, 1, 0.0))
    fleet.store.batches.add_file(File("g", "u", "", "batch", 1, 0.0))
    assert fleet.store.batches.reserve_file(File("r", "t", "gateway", "", 1, 0.0), 100_000, 60.0)

    def listed(*given: Any) -> str:
        return "".join(file.id[1:] for file in fleet.store.batches.files("t", *given))

    assert [listed(None, 9, None, oldest_first) for oldest_first in (False, True)] == ["3210", "0123"]
    assert [listed("f1", 9, None, oldest_first) for oldest_first in (False, True)] == ["0", "23"]
    assert listed(None, 1, "batch", True) == "0" and listed("f0", 9, "batch", True) == "2"
    assert listed(None, 9, "reserved") == listed("g", 9) == ""


def test_a_batch_knows_how_long_its_results_are_kept(fleet: Fleet) -> None:
    new = Batch(ids.new_batch(), "t", URL, "1h", "f", BatchState.UNCONFIRMED, {}, 0.0, outputs_kept_s=7_200.0)
    added = fleet.store.batches.add(new, 60.0)
    assert fleet.store.batches.confirm(new, 1) is BatchState.VALIDATING
    assert fleet.store.batches.move(new.id, BatchState.VALIDATING, BatchState.IN_PROGRESS)
    assert added.outputs_kept_s == fleet.get(new.id).outputs_kept_s == 7_200.0
    assert fleet.get(new.id).stamps.keys() == {"validating", "in_progress"}


@pytest.mark.slow
def test_a_tenant_gets_no_more_lines_than_its_quota_by_batches_that_are_checked_at_once(fleet: Fleet) -> None:
    """Two gateways that accepted a batch each took neither for under way."""
    ids_ = iter([fleet.batch(1) for _ in range(16)])
    found = at_once(fleet, lambda batches: batches.reserve_lines(fleet.get(next(ids_)), 10, 100.0, 35, 1_000.0))
    assert found.count(None) == 3 and found.count((30, 300.0)) == 13


def test_lines_that_are_to_be_accepted_count_in_the_quotas(fleet: Fleet) -> None:
    first, second = fleet.batch(8), fleet.batch(1)
    partly_accepted(fleet, first)
    assert fleet.store.requests.counts(first) == {RequestState.QUEUED: 4}
    all_of_it = fleet.store.batches.reserve_lines(fleet.get(second), 1, 1.0, 0, 0.0)
    fleet.steps()
    assert fleet.store.requests.counts(first) == {RequestState.QUEUED: 8}
    accepted = fleet.store.batches.reserve_lines(fleet.get(second), 1, 1.0, 0, 0.0)
    assert all_of_it is not None and accepted is not None and all_of_it[0] == accepted[0] == 8
    assert all_of_it[1] == pytest.approx(accepted[1]) and accepted[1] > 0.0
    assert fleet.get(first).stamps.keys() == {"validating", "in_progress"}
    assert fleet.store.batches.reserve_lines(fleet.get(second), 2, 9.0, 10, 1e9) is None
    assert fleet.get(second).lines != 2, "it is not validated any more"
