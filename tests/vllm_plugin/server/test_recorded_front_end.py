"""What the front end refuses is recorded, and joins the recordings of the engines of its server."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import BadBody, QueueFull, RateLimited, ShuttingDown
from sloserve.core.slo import Targets
from sloserve.engine.metrics.collectors import REASONS
from sloserve.engine.recording import run
from sloserve.engine.recording.events import (
    ABORTED,
    ABORTED_OR_STOP_STRING,
    BY_VLLM,
    FORMAT,
    FRONT_END,
    INVALID,
    REFUSALS,
    SATURATED,
    STOP_STRING,
    STOPPING,
    TENANT_LIMIT,
    UNKNOWN_MODEL,
    Event,
    Lost,
    RefusedRequest,
    RequestEnded,
    SegmentHead,
    Stepped,
)
from sloserve.engine.recording.folder import engine_stem, gateway_stem
from sloserve.engine.recording.front_end import reason_of
from sloserve.engine.recording.reading import Recording, read_recording, recordings
from sloserve.engine.recording.segments import SegmentWriter
from sloserve.wire import errors
from sloserve.wire.held import Held, held_header, stated_held, with_held
from tests.vllm_plugin.server.fake_engine import T0, Malformed, Metrics, Refused, Server

HEAD = SegmentHead(FORMAT, 1.0, {"kv_blocks": 9}, {}, "edf", None, 64, [])


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> run.RecordedRun:
    """Begin a run as the server's first process does."""
    monkeypatch.setenv(run.VARIABLE, "")
    run.begin_run(T0)
    return run.present_run(T0)


def recording(folder: Path, started: run.RecordedRun, rank: int = 0, events: Sequence[Event] = (HEAD,)) -> Recording:
    stem = engine_stem(started.name, rank)
    writer = SegmentWriter(folder, stem, 1 << 20)
    writer.write(events, lambda: HEAD)
    writer.close()
    return read_recording(recordings(folder)[stem])


def full(folder: Path, rank: int = 0, room: int = 1) -> Server:
    return Server(rank, admission={"mode": "cap", "max_waiting": room}, record_mib=1, record_folder=str(folder))


@pytest.mark.slow
def test_a_refused_request_is_recorded_with_what_is_known_of_it(
    metrics: Metrics, tmp_path: Path, started: run.RecordedRun
) -> None:
    server = full(tmp_path)
    server.accept(server.http(), {"prompt_token_ids": [0] * 10})
    server.clock.advance_to(T0 + 2.0)
    with pytest.raises(Refused, match="queue full"):
        server.accept(server.http(("x-slo-ttft-ms", "500"), ("x-tenant-id", "acme")), {"prompt_token_ids": [0] * 77})
    with pytest.raises(Malformed):
        server.accept(server.http(("x-slo-ttft-ms", "soon"), ("x-tenant-id", "acme")), {"prompt_token_ids": [0]})
    server.front_end.close()
    saturated, invalid = recording(tmp_path, started).refused
    assert (saturated.reason, saturated.at_s, saturated.prompt_tokens) == (SATURATED, T0 + 2.0, 77)
    assert (saturated.class_id, saturated.ttft_s, saturated.e2e_s) == (1, 0.5, None)
    assert (invalid.reason, invalid.class_id, invalid.ttft_s) == (INVALID, None, None)
    assert saturated.tenant == invalid.tenant == started.salt.name("acme")
    assert all(b"acme" not in path.read_bytes() for path in tmp_path.iterdir())


def test_all_requests_of_a_list_that_is_refused_are_recorded(
    metrics: Metrics, tmp_path: Path, started: run.RecordedRun
) -> None:
    server = full(tmp_path, room=3)
    other = server.accept(None, "text")

    async def three() -> None:
        held = [server.generate(prompt) for prompt in (10, 20, 30)]
        assert not held

    with pytest.raises(Refused, match="no room for a list"):
        server.handle(server.http(), three())
    server.front_end.close()
    found = recording(tmp_path, started).refused
    assert [(one.reason, one.prompt_tokens) for one in found] == [(SATURATED, 10), (SATURATED, 20), (SATURATED, 30)]
    other.abandoned()


def test_what_vllm_itself_refuses_is_recorded_too(
    metrics: Metrics, tmp_path: Path, started: run.RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.server.observe.refusals", lambda: (Refused, (ValueError,)))
    server = full(tmp_path)

    async def refused(error: Exception) -> None:
        async for _ in server.generate(33, fails=error):
            pass

    for error in (Refused("vLLM's own queue is full", 503), ValueError("the prompt is too long")):
        with pytest.raises(type(error)):
            server.handle(server.http(), refused(error))
    server.front_end.close()
    found = recording(tmp_path, started).refused
    assert [(one.reason, one.prompt_tokens) for one in found] == [(BY_VLLM, 33)] * 2
    assert [served.outcome.value for served in metrics.served[-2:]] == ["rejected", "invalid"]


def test_refusals_before_an_slo_is_read_are_recorded(
    metrics: Metrics, tmp_path: Path, started: run.RecordedRun
) -> None:
    server = full(tmp_path)
    server.front_end.count_unread(TENANT_LIMIT, "acme", "batch")
    server.front_end.count_stopped()
    assert metrics.reasons == [TENANT_LIMIT, STOPPING]
    server.front_end.close()
    found = recording(tmp_path, started).refused
    assert [(one.reason, one.tenant) for one in found] == [(TENANT_LIMIT, started.salt.name("acme")), (STOPPING, 0)]


def test_recordings_of_several_processes_are_joined_by_their_server(
    metrics: Metrics, tmp_path: Path, started: run.RecordedRun
) -> None:
    for rank in (0, 1):
        server = full(tmp_path, rank=rank)
        server.clock.advance_to(T0 + 5.0 - rank)
        server.front_end.record_refusal(TENANT_LIMIT, f"tenant-{rank}")
        server.front_end.close()
    first, second = recording(tmp_path, started), recording(tmp_path, started, rank=1)
    assert [one.at_s for one in first.refused] == [T0 + 4.0, T0 + 5.0] and first.refused == second.refused
    other = SegmentWriter(tmp_path, "another-1-rank0", 1 << 20)
    other.write([HEAD], lambda: HEAD)
    other.close()
    assert read_recording(recordings(tmp_path)["another-1-rank0"]).refused == []


def test_a_stop_string_that_the_api_process_finds_is_no_abort(
    metrics: Metrics, tmp_path: Path, started: run.RecordedRun
) -> None:
    server = full(tmp_path)
    params = SimpleNamespace(extra_args=None, max_tokens=None, n=2, stop=["."])

    async def outputs() -> Any:
        for index in (0, 1):
            one = SimpleNamespace(index=index, token_ids=[0], finish_reason="stop", stop_reason="." if index else 7)
            yield SimpleNamespace(outputs=[one], finished=index == 1, metrics=None, prompt_token_ids=[0])

    async def read() -> None:
        kind = SimpleNamespace(name="DELTA")
        params.output_kind = kind
        call = server.front_end.accept({"prompt_token_ids": [0]}, params)
        call.engine_request_id = "secret"
        async for _ in server.front_end.watch(call, outputs(), kind):
            pass

    server.handle(server.http(), read())
    server.front_end.close()
    ends = [
        RequestEnded(number, 1.0, False, 3, 0, b"", ABORTED_OR_STOP_STRING, started.salt.name(name))
        for number, name in enumerate(("0_secret", "1_secret", "other"))
    ]
    found = recording(tmp_path, started, events=[HEAD, *ends]).ended
    assert [one.reason for one in found.values()] == [ABORTED, STOP_STRING, ABORTED]
    assert [one.completed for one in found.values()] == [False, True, False]
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())
    for path in tmp_path.glob("*-api0-*"):
        path.unlink()
    (alone,) = recordings(tmp_path).values()
    assert {one.reason for one in read_recording(alone).ended.values()} == {ABORTED_OR_STOP_STRING}


def test_a_server_that_refuses_nothing_writes_nothing(metrics: Metrics, tmp_path: Path) -> None:
    server = full(tmp_path)
    server.serve(server.http())
    server.front_end.close()
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]
    assert Server().front_end is not None and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made_records_nothing_and_serves(
    metrics: Metrics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    server = full(tmp_path / "file" / "below")
    server.serve(server.http())
    assert "what this process refuses is not recorded" in caplog.text and len(metrics.served) == 1
    server.front_end.record_refusal(STOPPING)


def test_a_child_keeps_the_run_of_its_starter_and_another_server_begins_its_own(
    monkeypatch: pytest.MonkeyPatch, started: run.RecordedRun
) -> None:
    monkeypatch.setattr(run.multiprocessing, "parent_process", lambda: SimpleNamespace(pid=1))
    run.begin_run(T0 + 9.0)
    assert run.present_run(T0 + 9.0).name == started.name
    assert run.present_run(T0).salt.name("a") == started.salt.name("a")
    monkeypatch.setattr(run.multiprocessing, "parent_process", lambda: None)
    run.begin_run(T0 + 9.0)
    assert run.present_run(T0).name != started.name and run.present_run(T0).salt.name("a") != started.salt.name("a")
    for broken in ("", "name", "name 00zz", "name 00"):
        monkeypatch.setenv(run.VARIABLE, broken)
        assert run.present_run(T0).salt.name("a") != run.present_run(T0).salt.name("a")


def test_reasons_are_the_words_of_the_metrics() -> None:
    assert set(REFUSALS) - set(REASONS) == {BY_VLLM}, "which counts as other"
    assert {errors.REASON[kind] for kind in errors.REASON} <= set(REFUSALS)
    assert reason_of(QueueFull("full", 1, "batch")) == SATURATED and reason_of(ShuttingDown("stops", 1)) == STOPPING
    assert reason_of(QueueFull("yours", 1, "", of_tenant=True)) == TENANT_LIMIT
    assert reason_of(RateLimited("limit", 1, ())) == TENANT_LIMIT and reason_of(BadBody("no JSON")) == INVALID


def test_a_gateways_refusals_join_the_engines_of_the_model_that_ran_then(
    tmp_path: Path, started: run.RecordedRun
) -> None:
    """A gateway has a recording of its own, and serves several models."""
    facts = {"kv_blocks": 9, "model": "chat"}
    head = SegmentHead(FORMAT, 1.0, facts, {}, "edf", None, 64, [])
    steps = [Stepped(at_s, at_s + 0.1, 0, 0, 1, 9, 0, 0, 1, 0, 5, 0) for at_s in (10.0, 20.0)]
    writer = SegmentWriter(tmp_path, gateway_stem("other-run"), 1 << 20)
    refused = [
        RefusedRequest(at_s, SATURATED, 0, 1.0, None, None, None, 9, None, None, 0, model)
        for at_s, model in ((5.0, "chat"), (15.0, "chat"), (16.0, "code"), (17.0, UNKNOWN_MODEL), (25.0, "chat"))
    ]
    of_gateway = SegmentHead(FORMAT, 1.0, {}, {}, "edf", None, 0, [], FRONT_END)
    writer.write([*refused, Lost(15.0, 7)], lambda: of_gateway)
    writer.close()
    (tmp_path / "broken-gateway-000000.slorec").write_bytes(b"no recording")
    stem = engine_stem(started.name, 0)
    writer = SegmentWriter(tmp_path, stem, 1 << 20)
    writer.write(steps, lambda: head)
    writer.close()
    found = read_recording(recordings(tmp_path)[stem])
    assert [one.at_s for one in found.refused] == [15.0, 17.0]
    assert found.lost == 0, "a gateway's losses are none of an engine"
    assert list(recordings(tmp_path)) == [stem], "a gateway's recording is none of an engine"


def test_an_engine_that_records_learns_how_long_a_gateway_held_a_request(metrics: Metrics, tmp_path: Path) -> None:
    """Nobody else reads it: without a recording it goes no further, and a client cannot write it."""
    held = Held(1.25, 0.5, None)
    header = [(b"x-slo-held-ms", held_header(held.held_s, Targets(ttft_s=0.5)).encode())]
    for server, expected in ((full(tmp_path), held), (Server(), None)):
        http = server.http()
        http.read_headers(header, replace(server.rules, trusts_proxy=True))
        server.serve(http)
        assert stated_held(server.sent) == expected
        server.extra_args = with_held(None, held)
        server.serve(server.http())
        assert stated_held(server.sent) is None
