"""Gateways that advance one batch at once, and clients that ask at once: on SQLite and on PostgreSQL."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.errors import StoreAway
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.batch_api.json_objects import batch_json
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.store.records import Batch, BatchState, DurableRequest, File, RequestState, Result
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.store.store import Store as OpenStore
from tests import bounded
from tests.fleet.store.databases import Store

URL = "/v1/completions"


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
