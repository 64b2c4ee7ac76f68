"""Batches where several gateways, crashes and hostile files meet: the runner and its folder, without a client."""

import asyncio
import errno
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Router

from sloserve.core.clock import ManualClock
from sloserve.core.errors import StoreAway, StoreFull
from sloserve.fleet.batch_api import ids, lines, upload
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.batch_api.json_objects import batch_json
from sloserve.fleet.batch_api.lines import Limits
from sloserve.fleet.batch_api.results import result_line
from sloserve.fleet.batch_api.routes import BatchApi
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.store.records import Batch, BatchState, File, RequestState, Result
from sloserve.fleet.store.requests import Requests, ResultRow
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store
from tests import bounded
from tests.client.virtual_time import run

CHAT = "/v1/chat/completions"


class Fleet:
    """One store and folder, and what brings its batches on."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.path = ManualClock(), folder / "files"
        self.store = Store(SqliteDatabase(folder / "store.sqlite", self.clock))
        self.runner = self.gateway(self.path)

    def gateway(self, folder: Path) -> BatchRunner:
        return BatchRunner(
            self.store, Folder(folder), lambda tenant: {"m"}, lambda batch, line: 0, limits=Limits(line_bytes=100_000)
        )

    def batch(self, content: bytes, tenant: str = "t") -> str:
        file, batch = ids.new_file(), ids.new_batch()
        with self.runner.folder.writing(file) as written:
            written.write(content)
        self.store.batches.add_file(File(file, tenant, "in", "batch", len(content), 0.0))
        self.store.batches.add(Batch(batch, tenant, CHAT, "1h", file, BatchState.VALIDATING, {}, 0.0), 3_600.0)
        return batch

    def served(self, n: int, tenant: str = "t") -> str:
        """A batch of n lines that have results, about to be written to files."""
        batch = self.batch(b"\n".join(line(str(i)) for i in range(n)), tenant)
        self.runner.step()
        claim = self.store.requests.claim("agent", 0, n, 30.0)
        assert claim is not None
        done = [
            Result(r.id, r.attempt, RequestState.DONE, 200, b'{"a":"%s"}' % (b"x" * 10_000)) for r in claim.requests
        ]
        assert all(self.store.requests.finish(done))
        self.runner.step()
        assert self.get(batch, tenant).state is BatchState.FINALIZING
        return batch

    def get(self, batch: str, tenant: str = "t") -> Batch:
        found = self.store.batches.get(tenant, batch)
        assert found is not None
        return found

    def output(self, batch: str) -> list[str]:
        known = self.get(batch).output_file
        assert known is not None
        row = self.store.batches.file("t", known)
        text = (self.path / known).read_bytes()
        assert row is not None and row.bytes == len(text)
        return [json.loads(one)["custom_id"] for one in text.splitlines()]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.store.close()


def line(custom_id: str, **body: Any) -> bytes:
    asked = {"model": "m", "messages": [], **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": asked}).encode()


def whole(runner: BatchRunner) -> None:
    """All that there is to do, slice by slice."""
    with bounded.within("the end of all batches"):
        while runner.step():
            pass


def test_two_gateways_that_end_a_batch_at_once_lose_no_result(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one emptied the file that the other was writing, and could not fill it: the results were deleted."""
    batch, late = fleet.served(4), fleet.gateway(fleet.path)
    results, pages = Requests.results, 0
    has_begun, may_go_on = threading.Event(), threading.Event()
    other = threading.Thread(target=whole, args=(late,))

    def paged(self: Requests, batch: str, after: int = 0) -> Any:
        nonlocal pages
        if threading.current_thread() is other:
            has_begun.set()
            may_go_on.wait(10.0)
        else:
            pages += 1
            if pages == 2:
                other.start()
                has_begun.wait(10.0)
        return results(self, batch, after, most=2)

    monkeypatch.setattr(Requests, "results", paged)
    whole(fleet.runner)
    may_go_on.set()
    other.join(60.0)
    assert not other.is_alive() and fleet.get(batch).state is BatchState.COMPLETED
    assert fleet.output(batch) == ["0", "1", "2", "3"]
    assert len(list(fleet.path.iterdir())) == 2, "nothing is left of the other's"


def test_results_are_read_once_for_both_files(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were read, with all that engines answered, for the file of results and again for the file of errors."""
    batch = fleet.batch(line("a") + b"\n" + line("b"))
    fleet.runner.step()
    claim = fleet.store.requests.claim("agent", 0, 2, 30.0)
    assert claim is not None
    answered = zip(claim.requests, (200, 400), strict=True)
    ended = [Result(one.id, one.attempt, RequestState.DONE, status, b"{}") for one, status in answered]
    assert all(fleet.store.requests.finish(ended))
    results, read = Requests.results, list[str]()

    def counted(self: Requests, batch: str, after: int = 0) -> list[ResultRow]:
        rows = results(self, batch, after)
        read.extend(row.custom_id or "" for row in rows)
        return rows

    monkeypatch.setattr(Requests, "results", counted)
    whole(fleet.runner)
    assert read == ["a", "b"] and fleet.output(batch) == ["a"]
    errors = fleet.get(batch).error_file
    assert errors is not None and b'"custom_id":"b"' in (fleet.path / errors).read_bytes()


def test_a_file_that_was_deleted_does_not_come_back_by_a_gateway_that_is_late(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, other = fleet.served(1), fleet.gateway(fleet.path)
    move = fleet.store.batches.move

    def late(*args: Any, **given: Any) -> bool:
        monkeypatch.undo()
        other.step()
        assert fleet.store.batches.delete_file("t", fleet.get(batch).output_file or "")
        return move(*args, **given)

    monkeypatch.setattr(fleet.store.batches, "move", late)
    fleet.runner.step()
    assert [file.purpose for file in fleet.store.batches.files("t")] == ["batch"]


class SmallFolder(Folder):
    """A folder on a disk with ``room`` bytes for results; half files take room as long as they are there."""

    room, taken = 0, 0

    @contextmanager
    def writing(self, id: str) -> Iterator[Any]:
        with super().writing(id) as file:
            written, write = 0, file.write

            def limited(data: bytes) -> int:
                nonlocal written
                size = len(data) if len(data) >= 10_000 else 0  # of a result, not of an input file
                if self.taken + size > self.room:
                    raise StoreFull("the disk of the folder of files is full; free some of it")
                self.taken, written = self.taken + size, written + size
                return write(data)

            try:
                yield MagicMock(write=limited)
                written = 0
            finally:
                self.taken -= written

    def free_bytes(self) -> int:
        return self.room - self.taken


@pytest.fixture
def small(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> SmallFolder:
    """The folder of the fleet's runner, which reads results by pages of two."""
    folder = SmallFolder(fleet.path)
    fleet.runner = replace(fleet.runner, folder=folder)
    results = Requests.results
    monkeypatch.setattr(Requests, "results", lambda self, batch, after=0: results(self, batch, after, most=2))
    return folder


@pytest.mark.slow
def test_results_without_room_hold_up_no_other_tenant(
    fleet: Fleet, small: SmallFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """All later batches stayed as they were, of every tenant, and the same results were written every 2 s."""
    large = fleet.served(8)
    two = fleet.served(1, "u")
    small.room = 50_000
    new = fleet.batch(line("a"), "v")
    for _ in range(3):
        fleet.runner.step()
    assert fleet.get(two, "u").state is BatchState.COMPLETED and fleet.get(new, "v").state is BatchState.IN_PROGRESS
    assert fleet.get(large).state is BatchState.FINALIZING and caplog.text.count("waits for room") == 1
    writing = MagicMock(side_effect=small.writing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small, "writing", writing)
        fleet.clock.advance_to(fleet.clock.now_s() + 60.0)
        whole(fleet.runner)
    assert not writing.called, "there is no room for it yet"
    small.room = 1_000_000
    whole(fleet.runner)
    assert fleet.get(large).state is BatchState.COMPLETED


def test_the_smallest_results_are_written_first_where_there_is_no_room_for_all(
    fleet: Fleet, small: SmallFolder
) -> None:
    """Together they did not fit: each took the room that the other needed, for ever."""
    large = fleet.served(8)
    other = fleet.served(6, "u")
    small.room = 85_000
    for _ in range(40):
        fleet.clock.advance_to(fleet.clock.now_s() + 1.0)
        fleet.runner.step()
    assert fleet.get(other, "u").state is BatchState.COMPLETED and fleet.get(large).state is BatchState.FINALIZING


def test_a_folder_for_checked_lines_that_is_full_holds_up_one_batch(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, waiting = fleet.served(1, "u"), fleet.batch(line("b"))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as disk:
        disk.setattr("sloserve.fleet.batch_api.runner.pickle.dump", full)
        fleet.runner.step()
        fleet.runner.step()
    assert fleet.get(served, "u").state is BatchState.COMPLETED
    assert fleet.get(waiting).state is BatchState.VALIDATING
    fleet.clock.advance_to(fleet.clock.now_s() + 2.0)
    fleet.runner.step()
    assert fleet.get(waiting).state is BatchState.IN_PROGRESS


def test_files_that_are_away_for_one_batch_alone_hold_up_no_other(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object that its storage refuses ended every round at its batch."""
    lost, served = fleet.batch(line("a")), fleet.batch(line("a"), "u")
    file, open_ = fleet.get(lost).input_file, fleet.runner.folder.open

    def opened(id: str) -> Any:
        if id == file:
            raise StoreAway("403")
        return open_(id)

    monkeypatch.setattr(fleet.runner.folder, "open", opened)
    for _ in range(2):
        with pytest.raises(StoreAway):
            fleet.runner.step()
    assert fleet.get(served, "u").state is BatchState.IN_PROGRESS


def test_a_round_in_which_nothing_ends_costs_the_same_however_many_batches_are_open(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = 0

    def counted(begin: Callable[[SqliteDatabase], Any]) -> Callable[[SqliteDatabase], Any]:
        def count(database: SqliteDatabase) -> Any:
            nonlocal begun
            begun += 1
            return begin(database)

        return count

    rounds = []
    for _ in range(3):
        fleet.batch(line("a"))
        whole(fleet.runner)
        with monkeypatch.context() as patch:
            for name in ("transaction", "reading"):
                patch.setattr(SqliteDatabase, name, counted(getattr(SqliteDatabase, name)))
            begun = 0
            assert not fleet.runner.step()
            rounds.append(begun)
    assert rounds == [4, 4, 4]  # claims that lapsed, deadlines that passed, open batches, batches without open requests


def test_a_batch_is_left_to_the_gateway_that_has_its_file(fleet: Fleet, tmp_path: Path) -> None:
    batch, stranger = fleet.batch(line("a")), fleet.gateway(tmp_path / "elsewhere")
    stranger.step()
    assert fleet.get(batch).state is BatchState.VALIDATING
    fleet.clock.advance_to(fleet.clock.now_s() + 3_601.0)
    stranger.step()
    assert fleet.get(batch).state is BatchState.FAILED
    assert "is in no folder" in fleet.get(batch).errors[0]["message"]


def test_a_batch_ends_although_all_agents_are_gone(fleet: Fleet) -> None:
    """Nobody else would take back what they had."""
    batch = fleet.batch(line("a"))
    fleet.runner.step()
    assert fleet.store.requests.claim("agent", 0, 1, 30.0) is not None
    assert fleet.store.batches.move(batch, BatchState.IN_PROGRESS, BatchState.CANCELLING)
    fleet.runner.step()
    assert fleet.get(batch).state is BatchState.CANCELLING
    fleet.clock.advance_to(fleet.clock.now_s() + 31.0)
    fleet.runner.step()
    assert fleet.get(batch).state is BatchState.CANCELLED


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (line("a", x=json.loads("[" * 800 + "]" * 800)), "invalid_json_line"),
        (line("a", x=[[]] * 300), None),
        (b"\n\n \n", "empty_file"),
        (b"\n" * 9 + line("a"), "too_many_requests"),
    ],
    ids=["deep", "wide", "blank", "mostly blank"],
)
def test_what_a_file_may_hold(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, content: bytes, code: str | None) -> None:
    monkeypatch.setattr(lines, "MOST_DEPTH", 200)
    fleet.runner = replace(fleet.runner, limits=Limits(lines=8))
    batch = fleet.batch(content)
    fleet.runner.step()
    assert [error["code"] for error in fleet.get(batch).errors] == ([code] if code else [])


def test_a_line_is_read_as_json_once_before_it_is_served(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read again when it was accepted, and both times written anew."""
    read, loads = list[bytes](), lines.strict_json.loads
    monkeypatch.setattr(lines.strict_json, "loads", lambda text: (read.append(text), loads(text))[1])
    monkeypatch.setattr("sloserve.fleet.batch_api.runner._SLICE_LINES", 2)
    batch = fleet.batch(b"\n".join(line(str(i), prompt="\u00e9" * i) for i in range(5)))
    whole(fleet.runner)
    assert fleet.get(batch).lines == 5 and len(read) == 5
    claim = fleet.store.requests.claim("agent", 0, 9, 30.0)
    assert claim is not None
    assert [json.loads(one.body)["prompt"] for one in claim.requests] == ["\u00e9" * i for i in range(5)]


Answered = Callable[..., tuple[int, dict[str, Any]]]
FORM = "multipart/form-data; boundary=b"
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


class AtOnce(Executor):
    """Runs a call where it is asked for, in no time: virtual time would run away while a thread worked."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Never(Executor):
    """Its threads wait for a store that is stopped, not dead."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return Future()


class Late(AtOnce):
    """One call is answered only when the test says so."""

    def __init__(self, late: Callable[..., Any]) -> None:
        self.late: Callable[..., Any] | None = late
        self.answer: Callable[[], None] = lambda: None

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if call != self.late:
            return super().submit(call, *args, **kwargs)
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()
        self.answer = lambda: done.set_result(call(*args, **kwargs))
        return done


@pytest.fixture
def ask(fleet: Fleet) -> Answered:
    """Sends a request to the routes, its body in parts, each ``gap_s`` after the one before, in virtual time."""
    api = BatchApi(fleet.store, fleet.runner.folder, lambda request: "t", fleet.runner.confirm_later, executor=AtOnce())
    app = Router(api.routes())

    def asked(
        path: str, *parts: bytes, content_type: str = "application/json", gap_s: float = 0.0
    ) -> tuple[int, dict[str, Any]]:
        left, sent = list(parts), list[Any]()

        async def receive() -> Any:
            await asyncio.sleep(gap_s)
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", content_type.encode())]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        run(app(scope, receive, send))
        return sent[0]["status"], json.loads(sent[1]["body"])

    return asked


def test_an_id_that_no_database_keeps_is_the_id_of_nothing(ask: Answered) -> None:
    """It was a fault of the gateway: SQLite takes no half of a surrogate pair, PostgreSQL no NUL."""
    for text in ("\ud800", "\0"):
        values = {"endpoint": CHAT, "completion_window": "1h", "input_file_id": text}
        status, answer = ask("/v1/batches", json.dumps(values).encode())
        assert (status, answer["error"]["param"]) == (400, "input_file_id")


def test_a_disk_that_is_full_while_an_upload_comes_is_answered_507(
    ask: Answered, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.write", full)
    status, answer = ask("/v1/files", HEAD + b"x" * 100, content_type=FORM)
    assert status == 507 and "the disk is full" in answer["error"]["message"] and "TMPDIR" in caplog.text


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for path in ("/v1/files", "/v1/batches") for method in ("GET", "POST")]
    + [("GET", "/v1/files/file-1"), ("DELETE", "/v1/files/file-1"), ("GET", "/v1/files/file-1/content")]
    + [("GET", "/v1/batches/batch_1"), ("POST", "/v1/batches/batch_1/cancel")],
)
def test_a_store_that_is_stopped_is_away_within_5_s_for_every_route(fleet: Fleet, method: str, path: str) -> None:
    """Its connections stay open and say nothing, so that neither TCP nor a statement's timeout ends the wait."""
    api = BatchApi(fleet.store, fleet.runner.folder, lambda request: "t", fleet.runner.confirm_later, executor=Never())
    values = {"endpoint": CHAT, "completion_window": "1h", "input_file_id": "file-1"}

    async def asked() -> tuple[httpx.Response, float]:
        begun_s = asyncio.get_running_loop().time()
        transport = httpx.ASGITransport(Starlette(routes=api.routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            if path == "/v1/files" and method == "POST":
                answer = await client.post(path, files={"file": b"x"}, data={"purpose": "batch"})
            else:
                answer = await client.request(method, path, json=values if path == "/v1/batches" else None)
        return answer, asyncio.get_running_loop().time() - begun_s

    answer, took_s = run(asked())
    assert answer.status_code == 503 and answer.headers["retry-after"] == "5" and took_s <= 5.0
    assert len(api.routes()) == 9, "each is among the parameters"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kept too late", "no answer after the commit"])
def test_a_batch_whose_client_was_told_503_never_runs_whatever_became_of_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Its client creates it again, and all its lines were served twice. It was to be cancelled, which could fail, and
    was not done where the store failed after its commit.
    """
    file = fleet.store.batches.get("t", fleet.batch(line("a"))).input_file  # type: ignore[union-attr]
    add, executor = fleet.store.batches.add, Late(fleet.store.batches.add)
    if fault != "kept too late":

        def adds_and_fails(*args: Any) -> None:
            add(*args)
            raise StoreAway("away")

        monkeypatch.setattr(fleet.store.batches, "add", adds_and_fails)
    api = BatchApi(fleet.store, fleet.runner.folder, lambda request: "t", fleet.runner.confirm_later, executor=executor)
    values = {"endpoint": CHAT, "completion_window": "1h", "input_file_id": file}

    async def create() -> int:
        transport = httpx.ASGITransport(Starlette(routes=api.routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.post("/v1/batches", json=values)).status_code

    whole(fleet.runner)
    before = sum(sums.requests for sums in fleet.store.requests.sums())
    assert run(create()) == 503
    executor.answer()
    monkeypatch.undo()
    whole(fleet.runner)
    assert sum(sums.requests for sums in fleet.store.requests.sums()) == before
    kept = fleet.store.batches.list("t", None, 3)[0]
    assert batch_json(kept)["status"] == "validating"
    executor.late = None
    assert run(create()) == 200
    whole(fleet.runner)
    assert sum(sums.requests for sums in fleet.store.requests.sums()) == before + 1
    fleet.clock.advance_to(fleet.clock.now_s() + 3_601.0)
    fleet.runner.tidy()
    assert fleet.get(kept.id).state is BatchState.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["the store alone", "its gateway is killed", "the files are away, too"])
def test_a_batch_that_is_known_to_be_kept_runs_although_the_store_fails_then(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Only the gateway that had created it knew that its client had 200: it was cancelled if that gateway died."""
    file = fleet.store.batches.get("t", fleet.batch(line("a"))).input_file  # type: ignore[union-attr]
    api = BatchApi(fleet.store, fleet.runner.folder, lambda request: "t", fleet.runner.confirm_later, executor=AtOnce())
    values = {"endpoint": CHAT, "completion_window": "1d", "input_file_id": file}
    for write in ("move", "confirm"):
        monkeypatch.setattr(fleet.store.batches, write, MagicMock(side_effect=StoreAway("away")))
    if fault == "the files are away, too":
        monkeypatch.setattr(Folder, "writing", MagicMock(side_effect=StoreAway("away")))

    async def create() -> Any:
        transport = httpx.ASGITransport(Starlette(routes=api.routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/batches", json=values)

    answer = run(create())
    assert (answer.status_code, answer.json()["status"]) == (200, "validating")
    with pytest.raises(StoreAway):
        fleet.runner.step()
    monkeypatch.undo()
    fleet.clock.advance_to(fleet.clock.now_s() + 7_200.0)
    if fault == "its gateway is killed":
        fleet.runner = fleet.gateway(fleet.path)
    fleet.runner.tidy()
    whole(fleet.runner)
    run_later = fleet.get(answer.json()["id"])
    assert run_later.state is BatchState.IN_PROGRESS
    assert batch_json(run_later)["created_at"] == answer.json()["created_at"], "its client knows it by then"
    assert not (fleet.path / ids.confirmation_file_of(run_later.id)).exists()


@pytest.mark.parametrize(
    ("path", "parts", "closes"),
    [
        ("/v1/files", [HEAD, b"x" * 100], True),  # the second part comes too late
        ("/v1/batches", [b"x" * 70_000, b"y"], True),
        ("/v1/batches", [b"{", b"}"], False),
        ("/v1/batches/batch_1/cancel", [b""], False),
    ],
)
def test_a_connection_ends_with_a_refusal_if_the_rest_of_the_body_is_still_to_come(
    fleet: Fleet, path: str, parts: list[bytes], closes: bool
) -> None:
    """Else the server would read what nobody wants, for as long as its client takes to send it."""
    api = BatchApi(fleet.store, fleet.runner.folder, lambda request: "t", fleet.runner.confirm_later, executor=AtOnce())
    left, sent = list(parts), list[Any]()

    async def receive() -> Any:
        if len(left) < len(parts):
            await asyncio.sleep(upload.SILENT_S + 1.0 if closes else 0.0)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    of_body = (b"content-length", b"0") if len(parts) == 1 else (b"transfer-encoding", b"chunked")
    headers = [(b"content-type", FORM.encode()), of_body]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    run(Router(api.routes())(scope, receive, send))
    assert sent[0]["status"] >= 400
    assert ((b"connection", b"close") in sent[0]["headers"]) is closes


def test_an_upload_that_trickles_in_is_ended(ask: Answered) -> None:
    """Four tenants that sent a byte now and then kept all others from uploading."""
    status, answer = ask("/v1/files", HEAD, *[b"x"] * 100, content_type=FORM, gap_s=0.1 * upload.SILENT_S)
    assert status == 408 and f"a second more for each {upload.LEAST_BYTES_PER_S} bytes" in answer["error"]["message"]
    end = b"\r\n--b--\r\n"
    status, answer = ask("/v1/files", HEAD, *[b"x"] * 30, end, content_type=FORM, gap_s=0.03 * upload.SILENT_S)
    assert (status, answer["error"]["param"]) == (400, "purpose"), "it is read to its end"


@pytest.mark.parametrize("text", ["3599", "2592001", "0" * 9 + "99999999999", "1h"])
def test_a_file_expires_within_the_time_that_may_be_asked_for(ask: Answered, text: str) -> None:
    field = f'\r\n--b\r\nContent-Disposition: form-data; name="expires_after[seconds]"\r\n\r\n{text}'
    purpose = '\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch'
    status, answer = ask("/v1/files", HEAD + b"x" + (purpose + field).encode() + b"\r\n--b--\r\n", content_type=FORM)
    assert (status, answer["error"]["param"]) == (400, "expires_after[seconds]")


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b'{"text": "\xc3\xa9", "n": 1.50}', {"text": "\u00e9", "n": 1.5}),
        (b'{"a":\n[1]}', {"a": [1]}),
        (b'{"a":\r[1]}', {"a": [1]}),
        ('{"a": "b\u2028c\u2029d\x85e"}'.encode(), {"a": "b\u2028c\u2029d\x85e"}),
        (b'{"a": "\\ud800"}', {"a": "\ud800"}),
        (b"half of {", "half of {"),
        (b"\xff", "\ufffd"),
        (b"", ""),
    ],
)
def test_what_an_engine_answered_stands_on_one_line(body: bytes, read: object) -> None:
    line = result_line(ResultRow(1, "r", "c\u2028", 1, RequestState.DONE, 200, body))
    assert line.endswith(b"\n") and len(line.decode().splitlines()) == 1
    assert json.loads(line)["response"] == {"status_code": 200, "request_id": "r", "body": read}
    assert json.loads(line)["custom_id"] == "c\u2028"


@pytest.mark.slow
def test_what_the_store_says_of_itself_is_for_the_log(
    fleet: Fleet, ask: Answered, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its path or its server, and for whom that asked a password."""
    for error, status in ((StoreAway("the store /srv/x: user sloserve"), 503), (StoreFull("the store /srv/x"), 507)):
        monkeypatch.setattr(fleet.store.batches, "file", MagicMock(side_effect=error))
        values = {"endpoint": CHAT, "completion_window": "1h", "input_file_id": "file-1"}
        found, answer = ask("/v1/batches", json.dumps(values).encode())
        assert found == status and "retry in 5 s" in answer["error"]["message"]
        assert "/srv/x" not in json.dumps(answer) and str(error) in caplog.text
