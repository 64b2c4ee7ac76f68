"""Files and batches through OpenAI's own client, and what hostile ones get."""

import asyncio
import errno
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

from sloserve.core.clock import ManualClock
from sloserve.core.errors import StoreAway
from sloserve.fleet.batch_api import routes
from sloserve.fleet.batch_api import upload as upload_module
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.batch_api.lines import BatchLine, Limits
from sloserve.fleet.batch_api.routes import BatchApi
from sloserve.fleet.batch_api.runner import BatchRunner, group_of
from sloserve.fleet.store.records import Batch, BatchState, Claim, RequestState, Result
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store
from sloserve.fleet.tenant_limits import Quota
from tests import bounded

pytestmark = pytest.mark.slow  # OpenAI's client takes a second to load

LIMITS = Limits(file_bytes=20_000, lines=60, line_bytes=2_000)
QUOTA = Quota(bytes=50_000, batches=3, lines=70, tokens=19_000)
CHAT = "/v1/chat/completions"


@dataclass
class Fleet:
    """A gateway's routes, its runner, and engines that the test plays."""

    store: Store
    folder: Folder
    clock: ManualClock
    api: BatchApi
    runner: BatchRunner
    http: TestClient

    def client(self, tenant: str = "t") -> openai.OpenAI:
        return openai.OpenAI(api_key=tenant, base_url="http://testserver/v1", http_client=self.http, max_retries=0)

    def claim(self, most: int = 1_000) -> Claim | None:
        return self.store.requests.claim("agent", 0, most, 3_600.0)

    def serve(self, most: int = 1_000, status: int = 200) -> int:
        claim = self.claim(most)
        if claim is None:
            return 0
        results = [
            Result(r.id, r.attempt, RequestState.DONE, status, b'{"of":\n' + r.body + b"}") for r in claim.requests
        ]
        assert all(self.store.requests.finish(results))
        return len(results)

    def finish(self) -> None:
        """Run all steps of the batches that there are to run."""
        with bounded.within("the last step of the batches"):
            while self.runner.step():
                pass


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    clock = ManualClock()
    store, folder = Store(SqliteDatabase(tmp_path / "store.sqlite", clock)), Folder(tmp_path / "files")

    def tenant_of(request: Request) -> str:
        return request.headers["authorization"].removeprefix("Bearer ")

    runner = BatchRunner(
        store, folder, lambda tenant: {"m", "n"}, lambda batch, line: 0, limits=LIMITS, quota_of=lambda t: QUOTA
    )
    api = BatchApi(store, folder, tenant_of, runner.confirm_later, LIMITS, lambda tenant: QUOTA)
    with TestClient(Starlette(routes=api.routes()), base_url="http://testserver") as http:
        yield Fleet(store, folder, clock, api, runner, http)
    store.close()


def line(custom_id: str, **given: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": custom_id}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **given})


def upload(client: openai.OpenAI, lines: list[str]) -> str:
    return client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch").id


def create(client: openai.OpenAI, file: str, window: str = "24h") -> Any:
    return client.batches.create(input_file_id=file, endpoint=CHAT, completion_window=window)  # type: ignore[arg-type]


def rows_of(client: openai.OpenAI, file: str | None) -> dict[str, Any]:
    assert file is not None
    return {row["custom_id"]: row for row in map(json.loads, client.files.content(file).text.splitlines())}


def test_a_batch_from_upload_to_results(fleet: Fleet) -> None:
    client = fleet.client()
    n_line = line("c", body={"model": "n", "messages": [], "max_tokens": 7})
    file = upload(client, [line("a"), "", line("b"), n_line])
    batch = create(client, file)
    assert batch.status == "validating" and batch.expires_at - batch.created_at == 86_400
    assert fleet.runner.step()
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "in_progress" and batch.request_counts.total == 3
    fleet.serve(2)
    assert not fleet.runner.step()
    assert client.batches.retrieve(batch.id).request_counts.completed == 2
    fleet.serve()
    fleet.finish()
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.completed_at and batch.error_file_id is None
    rows = rows_of(client, batch.output_file_id)
    assert list(rows) == ["a", "b", "c"]  # in the file's order, although none is promised
    assert rows["c"]["response"]["status_code"] == 200
    assert rows["c"]["response"]["body"]["of"] == {"model": "n", "messages": [], "max_tokens": 7}
    assert [b.id for b in client.batches.list()] == [batch.id]
    assert {f.id for f in client.files.list()} == {file, batch.output_file_id}
    assert client.files.retrieve(file).filename == "in.jsonl"


def test_a_batch_whose_time_is_over_keeps_what_is_done(fleet: Fleet) -> None:
    client = fleet.client()
    batch = create(client, upload(client, [line(str(i)) for i in range(5)]), window="45m")
    fleet.runner.step()
    fleet.serve(2)
    claim = fleet.claim(1)
    fleet.clock.advance_to(fleet.clock.now_s() + 46 * 60)
    assert fleet.runner.step() is False  # one is still in flight
    assert claim is not None
    fleet.store.requests.finish([Result(claim.requests[0].id, 1, RequestState.EXPIRED, 504, b"")])
    fleet.finish()
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "expired" and (batch.request_counts.completed, batch.request_counts.failed) == (2, 3)
    assert list(rows_of(client, batch.output_file_id)) == ["0", "1"]
    errors = rows_of(client, batch.error_file_id)
    assert list(errors) == ["2", "3", "4"] and errors["4"]["error"]["code"] == "batch_expired"


def test_a_cancelled_batch_keeps_what_is_done(fleet: Fleet) -> None:
    client = fleet.client()
    batch = create(client, upload(client, [line(str(i)) for i in range(4)]))
    fleet.runner.step()
    fleet.serve(1)
    claim = fleet.claim(1)
    assert client.batches.cancel(batch.id).status == "cancelling"
    fleet.runner.step()
    assert claim is not None and fleet.claim() is None
    assert fleet.store.requests.renew("agent", 60.0).cancelled == {claim.requests[0].id}
    fleet.store.requests.finish([Result(claim.requests[0].id, 1, RequestState.CANCELLED, 499, b"")])
    fleet.finish()
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "cancelled" and list(rows_of(client, batch.output_file_id)) == ["0"]
    assert rows_of(client, batch.error_file_id)["3"]["error"]["code"] == "batch_cancelled"
    assert client.batches.cancel(batch.id).status == "cancelled"
    done = create(client, upload(client, [line("a")]))
    fleet.runner.step()
    fleet.serve()
    fleet.finish()
    with pytest.raises(openai.ConflictError, match="is completed"):
        client.batches.cancel(done.id)


def test_a_batch_cancelled_while_it_is_validated_serves_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    client = fleet.client()
    batch = create(client, upload(client, [line("a"), line("b")]))
    accept = fleet.store.requests.accept

    def cancelled_meanwhile(*given: Any) -> int:
        client.batches.cancel(batch.id)
        return accept(*given)

    monkeypatch.setattr(fleet.store.requests, "accept", cancelled_meanwhile)
    fleet.finish()
    assert client.batches.retrieve(batch.id).status == "cancelled" and fleet.claim() is None


def test_failed_requests_are_in_the_error_file_with_their_answer(fleet: Fleet) -> None:
    client = fleet.client()
    batch = create(client, upload(client, [line("a"), line("b")]))
    fleet.runner.step()
    fleet.serve(1, status=400)
    fleet.serve(1)
    fleet.finish()
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert rows_of(client, batch.error_file_id)["a"]["response"]["status_code"] == 400
    assert list(rows_of(client, batch.output_file_id)) == ["b"]


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[1]", "invalid_json_line", None),
        ("[" * 1_500, "invalid_json_line", None),
        (line("x").replace("{", '{"body": {}, ', 1), "invalid_json_line", None),
        (line("x", body={"model": "m", "temperature": math.nan}), "invalid_json_line", None),
        (line("x", body={"model": "m", "temperature": 1}).replace(": 1}", ": 1e999}"), "invalid_json_line", None),
        (line("x", body={"model": "m", "n": 1e9}), "invalid_n", "body.n"),
        (line("x", body={"model": "m", "n": 16_385}), "invalid_n", "body.n"),
        (line("x", body={"model": "m", "n": 0}), "invalid_n", "body.n"),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("a"), "duplicate_custom_id", "custom_id"),
        (line("a\0"), "invalid_custom_id", "custom_id"),
        (line("\ud800"), "invalid_custom_id", "custom_id"),
        (line("x", method="GET"), "invalid_method", "method"),
        (line("x", url="/v1/responses"), "mismatched_url", "url"),
        (line("x", body=[]), "invalid_body", "body"),
        (line("x", body={"model": "other"}), "model_not_found", "body.model"),
        (line("x", body={"model": "m", "stream": True}), "stream_not_allowed", "body.stream"),
        (line("x", body={"model": "m", "slo": {"class": "priority"}}), "slo_not_allowed", "body.slo"),
        (
            line("x", body={"model": "m", "vllm_xargs": {"slo_e2e_ms": 1}}),
            "slo_not_allowed",
            "body.vllm_xargs.slo_e2e_ms",
        ),
        (line("x", body={"model": "m", "priority": -5}), "slo_not_allowed", "body.priority"),
        (line("x" * 1_990), "line_too_long", None),
    ],
)
def test_validation_names_the_line_and_serves_nothing(fleet: Fleet, bad: str, code: str, param: str | None) -> None:
    client = fleet.client()
    batch = create(client, upload(client, [line("a"), bad, line("b")]))
    fleet.runner.step()
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "failed" and batch.failed_at
    (error,) = batch.errors.data
    assert (error.code, error.line, error.param) == (code, 2, param)
    assert fleet.claim() is None and batch.request_counts.total == 0


def test_too_many_requests_and_an_empty_file_are_refused_by_validation(fleet: Fleet) -> None:
    client = fleet.client()
    for lines, code in (([line(str(i)) for i in range(61)], "too_many_requests"), ([""], "empty_file")):
        batch = create(client, upload(client, lines))
        fleet.runner.step()
        assert client.batches.retrieve(batch.id).errors.data[0].code == code


def test_a_step_that_a_crash_broke_off_does_nothing_twice(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    client = fleet.client()
    batch = create(client, upload(client, [line(str(i)) for i in range(3)]))
    move = fleet.store.batches.move
    for _ in range(2):  # before the batch's row says that it is done
        with monkeypatch.context() as crash:
            crash.setattr(fleet.store.batches, "move", _raise(StoreAway("away")))
            with pytest.raises(StoreAway):
                fleet.runner.step()
    assert fleet.store.batches.move == move
    fleet.runner.step()
    assert fleet.serve() == 3
    fleet.runner.step()
    with monkeypatch.context() as crash:
        crash.setattr(fleet.store.batches, "move", _raise(StoreAway("away")))
        with pytest.raises(StoreAway):
            fleet.runner.step()
    fleet.finish()
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and len(rows_of(client, batch.output_file_id)) == 3
    assert len(list(client.files.list())) == 2


def _raise(error: Exception) -> Any:
    def raising(*_: Any, **__: Any) -> Any:
        raise error

    return raising


def test_half_a_surrogate_pair_in_prompt_or_reply_holds_up_no_batch(fleet: Fleet) -> None:
    client = fleet.client()
    broken = line("a", body={"model": "m", "prompt": "\ud800"})
    batches = [create(client, upload(client, lines)) for lines in ([broken], [line("b")])]
    fleet.finish()
    assert fleet.serve() == 2  # the reply repeats the prompt
    fleet.finish()
    assert [client.batches.retrieve(batch.id).status for batch in batches] == ["completed", "completed"]
    assert fleet.http.get("/v1/files?after=%00", headers={"Authorization": "Bearer t"}).status_code == 400


def test_a_batch_that_fails_in_an_unknown_way_holds_up_no_other(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    client = fleet.client()
    first, second = (create(client, upload(client, [line("a")])) for _ in range(2))
    validate = BatchRunner._errors

    def failing(runner: BatchRunner, batch: Any, *files: Any) -> Any:
        if batch.id == first.id:
            raise RuntimeError
        return validate(runner, batch, *files)

    monkeypatch.setattr(BatchRunner, "_errors", failing)
    assert fleet.runner.step()
    assert client.batches.retrieve(second.id).status == "in_progress"


def test_a_large_file_of_one_tenant_holds_up_no_other(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files were read, and all results written, one whole file after another."""
    monkeypatch.setattr("sloserve.fleet.batch_api.runner._SLICE_LINES", 5)
    large, small = fleet.client("large"), fleet.client("small")
    slow = [create(large, upload(large, [line(str(i)) for i in range(30)])) for _ in range(2)]
    quick = create(small, upload(small, [line("a")]))
    fleet.runner.step()
    assert small.batches.retrieve(quick.id).status == "in_progress"
    assert large.batches.retrieve(slow[0].id).status == "validating"
    rounds = 1
    while fleet.runner.step():
        rounds += 1
    assert rounds == 2 * (6 + 6 - 1), "each of its files is read twice, six parts each, one file after the other"
    assert large.batches.retrieve(slow[1].id).status == "in_progress" and fleet.serve() == 61
    gone = create(large, upload(large, [line(str(i)) for i in range(30)]))
    fleet.runner.step()
    large.batches.cancel(gone.id)
    fleet.finish()
    assert large.batches.retrieve(gone.id).status == "cancelled", "what was begun is left where it stands"


def test_a_file_beyond_its_tenants_quota_fails_and_serves_nothing(fleet: Fleet) -> None:
    client = fleet.client()
    first = create(client, upload(client, [line(str(i)) for i in range(40)]))
    fleet.runner.step()
    second = create(client, upload(client, [line(str(i)) for i in range(40)]))
    fleet.runner.step()
    (error,) = client.batches.retrieve(second.id).errors.data
    assert (
        error.code == "request_limit_exceeded"
        and "40 requests wait or run, 40 are in this file, and the limit is 70" in error.message
    )
    assert fleet.serve() == 40 and client.batches.retrieve(first.id).status == "in_progress"
    many = [line(str(i), body={"model": "m", "prompt": "x" * 1_400}) for i in range(60)]
    fleet.finish()
    for file in client.files.list():
        client.files.delete(file.id)
    big = create(client, upload(client, many[:8] + [line(str(i)) for i in range(20, 40)]))
    fleet.runner.step()
    assert client.batches.retrieve(big.id).status == "in_progress"
    huge = create(client, upload(client, many[:13]))
    fleet.runner.step()
    assert client.batches.retrieve(huge.id).errors.data[0].code == "token_limit_exceeded"


def test_what_has_had_its_time_is_really_gone(fleet: Fleet, tmp_path: Path) -> None:
    client = fleet.client()
    kept = upload(client, [line("a")])
    short = client.files.create(
        file=("in", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
    )
    batch = create(client, kept)
    fleet.runner.step()
    fleet.serve()
    fleet.finish()
    output = client.batches.retrieve(batch.id).output_file_id
    assert fleet.store.requests.results(batch.id)[0].body is None, "the answer stands in the file alone"
    assert fleet.store.requests.forget_ended() == 0
    for days, left in ((0.5, {kept, output}), (29.0, {kept, output}), (32.0, {kept})):
        fleet.clock.advance_to(ManualClock.EPOCH_OFFSET_S + days * 86_400)
        fleet.runner.tidy()
        assert {file.id for file in client.files.list()} == left
        assert {file.name for file in (tmp_path / "files").iterdir()} == left
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(short.id)
    assert list(client.batches.list()) == [] and fleet.store.requests.counts(batch.id) == {}


def test_a_batch_is_spread_over_request_groups() -> None:
    batches = [Batch(id, "t", CHAT, "24h", "f", BatchState.VALIDATING, {}, 0.0) for id in ("b1", "b2")]
    lines = [BatchLine(n, str(n), model, b"", 1, 1.0) for n in range(1, 1_001) for model in ("m", "n")]
    groups = {group_of(batch, one) for batch in batches for one in lines}
    assert len(groups) == 2 * 2 * 4 and all(0 <= group < 2**53 for group in groups)
    assert group_of(batches[0], lines[0]) == group_of(batches[0], lines[0])


def test_another_tenants_ids_are_answered_like_those_of_nothing(fleet: Fleet) -> None:
    mine, other = fleet.client("mine"), fleet.client("other")
    file = upload(mine, [line("a")])
    batch = create(mine, file)
    calls = [
        lambda: other.files.retrieve(file),
        lambda: other.files.content(file),
        lambda: other.files.delete(file),
        lambda: other.batches.retrieve(batch.id),
        lambda: other.batches.cancel(batch.id),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError, match="there is no (file|batch)"):
            call()
    with pytest.raises(openai.BadRequestError, match="input_file_id"):
        create(other, file)
    assert list(other.files.list(after=file)) == [] and list(other.batches.list(after=batch.id)) == []
    assert mine.files.retrieve(file).id == file


def test_a_deleted_file_is_gone_and_its_batch_says_so(fleet: Fleet, tmp_path: Path) -> None:
    client = fleet.client()
    file = upload(client, [line("a")])
    batch = create(client, file)
    assert client.files.delete(file).deleted
    assert list((tmp_path / "files").iterdir()) == []
    fleet.runner.step()
    assert client.batches.retrieve(batch.id).errors.data[0].code == "file_not_found"


def test_lists_come_in_pages(fleet: Fleet) -> None:
    client = fleet.client()
    files = [upload(client, [line("a")]) for _ in range(3)]
    page = client.files.list(limit=2)
    assert [f.id for f in page.data] == files[:0:-1] and page.has_more
    assert [f.id for f in client.files.list(limit=1)] == files[::-1]  # the client turns the pages
    batches = [create(client, files[0]).id for _ in range(3)]
    assert [b.id for b in client.batches.list(limit=1)] == batches[::-1]


def test_a_list_of_files_has_the_purpose_and_the_order_that_are_asked_for(fleet: Fleet) -> None:
    """Both were ignored."""
    client = fleet.client()
    inputs = [upload(client, [line("a")]) for _ in range(3)]
    for file in inputs[:2]:
        create(client, file)
    fleet.runner.step()
    fleet.runner.step()
    fleet.serve()
    fleet.finish()
    outputs = [batch.output_file_id for batch in client.batches.list()][::-1]
    assert [file.id for file in client.files.list(order="asc", limit=2)] == [*inputs, *outputs], "in pages"
    assert [file.id for file in client.files.list(purpose="batch_output", limit=1)] == outputs[::-1]
    assert [file.id for file in client.files.list(purpose="batch", order="asc")] == inputs
    assert list(client.files.list(purpose="vision")) == []


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/files", "order=up"),
        ("/v1/files", "purpose=%00"),
        ("/v1/files", "before=file-1"),
        ("/v1/batches", "order=asc"),
        ("/v1/batches", "limit=101"),
    ],
)
def test_a_parameter_of_a_list_that_is_not_served_is_refused(fleet: Fleet, path: str, query: str) -> None:
    answer = fleet.http.get(f"{path}?{query}", headers={"Authorization": "Bearer t"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_files_of_results_expire_when_their_batch_asked_for_it(fleet: Fleet) -> None:
    """It was ignored: they stayed for 30 days."""
    client = fleet.client()
    file = upload(client, [line("a")])
    asked: Any = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    short = client.batches.create(**asked, output_expires_after={"anchor": "created_at", "seconds": 7_200})
    usual = client.batches.create(**asked)
    fleet.finish()
    fleet.serve()
    fleet.clock.advance_to(fleet.clock.now_s() + 1_000.0)
    fleet.finish()
    outputs = [client.batches.retrieve(batch.id).output_file_id for batch in (short, usual)]
    kept = [client.files.retrieve(output) for output in outputs if output is not None]
    assert [file.expires_at - file.created_at for file in kept if file.expires_at] == [7_200, 30 * 86_400]
    assert kept[0].created_at == short.created_at + 1_000, "from when the file is created"
    fleet.clock.advance_to(fleet.clock.now_s() + 7_200.0)
    fleet.runner.tidy()
    assert {file.id for file in client.files.list(purpose="batch_output")} == {outputs[1]}


def test_a_form_with_a_field_that_is_not_served_is_refused(fleet: Fleet) -> None:
    for field, value in (("expires_after", "3600"), ("expires_after[anchor]", "created_at"), ("ttl", "1")):
        form: Any = {"files": {"file": ("f", b"x")}, "data": {"purpose": "batch", field: value}}
        answer = fleet.http.post("/v1/files", headers={"Authorization": "Bearer t"}, **form)
        assert answer.status_code == 400 and field.partition("[")[0] in answer.json()["error"]["param"]
    form = {"files": {"file": ("f", b"x")}, "data": {"purpose": "batch", "expires_after[seconds]": "3600"}}
    form["data"]["expires_after[anchor]"] = "last_active_at"
    answer = fleet.http.post("/v1/files", headers={"Authorization": "Bearer t"}, **form)
    assert answer.json()["error"]["param"] == "expires_after[anchor]"


def test_what_is_too_much_is_refused_before_it_is_kept(fleet: Fleet, tmp_path: Path) -> None:
    client = fleet.client()
    with pytest.raises(openai.APIStatusError, match="more than") as raised:
        client.files.create(file=("big", b"x" * 90_000), purpose="batch")
    assert raised.value.status_code == 413 and raised.value.param == "file"
    with pytest.raises(openai.APIStatusError, match="file: 20001 bytes are more than 20000"):
        client.files.create(file=("big", b"x" * 20_001), purpose="batch")
    chunked = fleet.http.post(
        "/v1/files",
        content=iter(
            [b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n', *[b"x" * 9_000] * 20]
        ),
        headers={"Authorization": "Bearer t", "Content-Type": "multipart/form-data; boundary=b"},
    )
    assert chunked.status_code == 413 and chunked.json()["error"]["param"] == "file"
    files = [client.files.create(file=("f", b"x" * 20_000), purpose="batch").id for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="50000 may be kept"):
        client.files.create(file=("f", b"x" * 20_000), purpose="batch")
    assert len(list((tmp_path / "files").iterdir())) == 2
    for _ in range(3):
        create(client, files[0])
    with pytest.raises(openai.RateLimitError, match="3 batches are unfinished"):
        create(client, files[0])


def test_results_count_in_the_quota_of_bytes_before_they_stand_in_files(fleet: Fleet) -> None:
    """They counted once they were written: a tenant's results could fill the store beside its quota."""
    client = fleet.client()
    file = upload(client, [line(str(i), body={"model": "m", "prompt": "x" * 700}) for i in range(20)])
    batch = create(client, file)
    fleet.runner.step()
    assert fleet.serve(15) == 15
    fleet.runner.hold_to_quotas()
    assert client.batches.retrieve(batch.id).request_counts.failed == 0, "there is room"
    filled = [client.files.create(file=("f", b"x" * 10_000), purpose="batch").id for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="50000 may be kept"):
        client.files.create(file=("f", b"x" * 10_000), purpose="batch")
    claim = fleet.claim(2)
    assert claim is not None
    body = b'{"of":' + b"9" * 20_000 + b"}"
    fleet.store.requests.finish([Result(r.id, r.attempt, RequestState.DONE, 200, body) for r in claim.requests[:1]])
    with pytest.raises(openai.RateLimitError, match="your files and results take [0-9]+ bytes, and 50000 may be kept"):
        create(client, file)
    fleet.runner.hold_to_quotas()
    fleet.store.requests.finish([Result(r.id, r.attempt, RequestState.DONE, 200, b"{}") for r in claim.requests[1:]])
    fleet.finish()
    ended = client.batches.retrieve(batch.id)
    assert (ended.status, ended.request_counts.completed, ended.request_counts.failed) == ("completed", 17, 3)
    errors = rows_of(client, ended.error_file_id)
    assert {row["error"]["code"] for row in errors.values()} == {"storage_limit_exceeded"} and len(errors) == 3
    for id in (*filled, ended.output_file_id):
        client.files.delete(id)
    assert create(client, file).status == "validating"


def test_uploads_and_batches_at_once_keep_to_the_quotas(fleet: Fleet) -> None:
    """They were checked before, and counted after, whatever others had sent meanwhile."""
    first = upload(fleet.client(), [line("a")])
    asked = {"input_file_id": first, "endpoint": CHAT, "completion_window": "24h"}
    headers = {"Authorization": "Bearer t"}

    async def test() -> tuple[list[int], list[int]]:
        transport = httpx.ASGITransport(Starlette(routes=fleet.api.routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            made = await asyncio.gather(*(client.post("/v1/batches", json=asked) for _ in range(12)))
            form = {"files": {"file": ("b.jsonl", b"x" * 18_000)}, "data": {"purpose": "batch"}}
            kept = await asyncio.gather(*(client.post("/v1/files", **form) for _ in range(4)))  # type: ignore[arg-type]
        # A refused upload is answered first; a thread gives back what it had reserved.
        await bounded.until(lambda: fleet.store.bytes_of("t") == 4_096 + 2 * 18_000)
        return sorted(one.status_code for one in made), sorted(one.status_code for one in kept)

    assert bounded.run(test()) == ([200] * 3 + [429] * 9, [200] * 2 + [429] * 2)
    assert len(list(fleet.client().batches.list())) == 3
    assert fleet.store.batches.unconfirmed() == []


def test_a_failed_upload_gives_its_bytes_back(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    client = fleet.client()
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("f", b"x" * 19_000), purpose="vision")
    with monkeypatch.context() as away:
        away.setattr(fleet.store.batches, "keep_file", _raise(StoreAway("away")))
        with pytest.raises(openai.InternalServerError):
            client.files.create(file=("f", b"x" * 19_000), purpose="batch")
    with monkeypatch.context() as slow:
        slow.setattr(fleet.store.batches, "keep_file", lambda *_: None)
        with pytest.raises(openai.InternalServerError):
            client.files.create(file=("f", b"x" * 19_000), purpose="batch")
    fleet.api.executor.shutdown(wait=True)  # type: ignore[call-arg, unused-ignore]
    assert fleet.store.batches.bytes_of("t") == 0 and fleet.store.batches.reserved_files() == []
    assert list(fleet.folder._path.iterdir()) == []


def test_an_upload_that_is_cut_off_gives_its_bytes_back(fleet: Fleet) -> None:
    begin = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx'
    messages = [{"type": "http.request", "body": begin, "more_body": True}, {"type": "http.disconnect"}]
    reserved = list[int]()

    async def receive() -> Any:
        reserved.append(fleet.store.batches.bytes_of("t"))
        return messages.pop(0)

    async def send(_: Any) -> None:
        pass

    fields = {"authorization": "Bearer t", "content-type": "multipart/form-data; boundary=b", "content-length": "80000"}
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b"", "headers": headers}
    bounded.run(Starlette(routes=fleet.api.routes())(scope, receive, send))
    fleet.api.executor.shutdown(wait=True)
    assert reserved[0] == 80_000 - 65_536, "before its bytes were read"
    assert fleet.store.batches.bytes_of("t") == 0


def test_empty_files_take_their_place_and_batches_their_row(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    client = fleet.client()
    for _ in range(12):  # 12 * 4,096 are 49,152
        file = client.files.create(file=("f", b""), purpose="batch").id
    with pytest.raises(openai.RateLimitError, match="50000 may be kept"):
        client.files.create(file=("f", b"x" * 900), purpose="batch")
    monkeypatch.setattr(routes, "_MOST_KEPT", 2)
    for _ in range(2):
        client.batches.cancel(create(client, file).id)
        fleet.runner.step()
    with pytest.raises(openai.RateLimitError, match="2 batches of yours are kept"):
        create(client, file)


def test_uploads_that_do_not_go_on_are_few_and_end(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes room on the disk before it is kept."""
    monkeypatch.setattr(upload_module, "SILENT_S", 0.1)
    head = {"authorization": "Bearer t", "content-type": "multipart/form-data; boundary=b"}
    scope = {"type": "http", "method": "POST", "path": "/v1/files", "query_string": b""}
    app = Starlette(routes=fleet.api.routes())

    async def answered(tenant: str, **more: str) -> int:
        headers = {**head, "authorization": f"Bearer {tenant}", **more}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await app({**scope, "headers": raw}, asyncio.Event().wait, send)
        return int(sent[0]["status"])

    async def test() -> list[int]:
        slow = [asyncio.create_task(answered("t")) for _ in range(5)]
        await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
        refused = [task.result() for task in slow if task.done()]
        return [*refused, await answered("u"), *await asyncio.gather(*slow)]

    assert bounded.run(test()) == [429, 408, 408, 408, 408, 408, 429]
    assert bounded.run(answered("t", **{"content-length": str(200_000)})) == 429, "beyond the quota"


@pytest.mark.parametrize(
    "values",
    [
        {"endpoint": "/v1/responses"},
        {"completion_window": "never"},
        {"completion_window": "0h"},
        {"completion_window": "31d"},
        {"completion_window": 24},
        {"input_file_id": "../../etc/passwd"},
        {"input_file_id": None},
        {"metadata": {"k": 1}},
        {"metadata": {"k": "\ud800"}},
        {"input_file_id": "file-\0"},
        {"metadata": {str(i): "v" for i in range(17)}},
        {"output_expires_after": 3_600},
        {"output_expires_after": {"anchor": "created_at"}},
        {"output_expires_after": {"seconds": 3_599}},
        {"output_expires_after": {"seconds": 3_600.5}},
        {"output_expires_after": {"seconds": True}},
        {"output_expires_after": {"seconds": 3_600, "anchor": "completed_at"}},
        {"output_expires_after": {"seconds": 3_600, "days": 1}},
        {"priority": 1},
    ],
)
def test_a_batch_that_cannot_be_is_refused_with_the_field(fleet: Fleet, values: dict[str, Any]) -> None:
    file = upload(fleet.client(), [line("a")])
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **values}
    headers = {"Authorization": "Bearer t"}
    answer = fleet.http.post("/v1/batches", content=json.dumps(body), headers=headers)  # in ASCII, as clients may
    assert answer.status_code == 400
    assert next(iter(values)) in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/files/..%2f..%2fstore.sqlite", "/v1/files/x/content", "/v1/batches/%00"])
def test_no_id_is_a_path(fleet: Fleet, path: str) -> None:
    answer = fleet.http.get(path, headers={"Authorization": "Bearer t"})
    assert answer.status_code == 404


def test_bodies_that_are_no_form_or_no_json_are_refused(fleet: Fleet) -> None:
    headers = {"Authorization": "Bearer t"}
    for content_type in ("application/json", "multipart/form-data", "multipart/form-data; boundary=b"):
        answer = fleet.http.post("/v1/files", content=b"{}", headers={**headers, "Content-Type": content_type})
        assert answer.status_code == 400, answer.text
        assert "error" in answer.json()
    for body in (b"", b"[]", b"[" * 5_000, b"\xff"):
        assert fleet.http.post("/v1/batches", content=body, headers=headers).status_code == 400
    assert fleet.http.post("/v1/batches", content=b" " * 70_000, headers=headers).status_code == 413


def test_a_full_disk_answers_507_and_a_store_that_is_away_503(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    client = fleet.client()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        with pytest.raises(openai.APIStatusError, match="is full") as raised:
            upload(client, [line("a")])
    assert raised.value.status_code == 507 and list(client.files.list()) == []
    monkeypatch.setattr(fleet.store.batches, "files", _raise(StoreAway("the store does not answer")))
    answer = fleet.http.get("/v1/files", headers={"Authorization": "Bearer t"})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "5"


def test_a_folder_forgets_what_no_row_knows(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for id in (known := "file-" + "0" * 32, "file-" + "1" * 32):
        with folder.writing(id) as file:
            file.write(b"x")
    half = tmp_path / f"file-{'2' * 32}.part"
    half.write_bytes(b"x")
    with pytest.raises(RuntimeError), folder.writing("file-" + "3" * 32):
        raise RuntimeError
    Folder(tmp_path).keep_only(lambda id: id == known, before_s=0.0)
    assert len(list(tmp_path.iterdir())) == 3 and half.exists(), "another gateway may be at it"
    Folder(tmp_path).keep_only(lambda id: id == known, before_s=2**40)
    assert [file.name for file in tmp_path.iterdir()] == [known]
    with pytest.raises(ValueError, match="is not the id of a file"):
        folder.open("../x")
