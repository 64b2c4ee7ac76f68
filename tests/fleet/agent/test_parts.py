"""What an agent decides and keeps, each by itself: methods, what is built alike, costs, logs, processes that die."""

import errno
import json
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sloserve.fleet.agent import engine_logs
from sloserve.fleet.agent.alike import are_alike, fingerprint
from sloserve.fleet.agent.costs import Costs, SharedCosts
from sloserve.fleet.agent.engine_requests import AwaitedRequests, line_of, stream_of
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.agent.line_output import LineOutput
from sloserve.fleet.agent.switch_methods import Situation, SwitchMethod, choose
from sloserve.fleet.client_routes import CHAT, COMPLETIONS
from sloserve.fleet.contract.endpoint import LineSize
from sloserve.fleet.contract.reports import MeasuredSwap
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS
from sloserve.fleet.store.records import Claimed
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store
from sloserve.scheduler.virtual_queues.contract import ModelState
from tests import bounded

GIB = 2**30
WAKE, IN_PLACE = SwitchMethod.WAKE, SwitchMethod.IN_PLACE


@pytest.mark.parametrize(
    ("at", "measured", "method"),
    [
        (Situation(base_is_active=True, is_alike=True), {}, SwitchMethod.ADAPTER),
        (Situation(is_alike=True), {}, IN_PLACE),
        (Situation(is_alike=True, sleeps_at=1, weights_bytes=64 * GIB), {}, WAKE),
        (Situation(is_alike=True, sleeps_at=1), {WAKE: 5.0, IN_PLACE: 1.0}, IN_PLACE),
        (Situation(sleeps_at=2), {}, SwitchMethod.RELOAD),
        (Situation(), {}, SwitchMethod.FORKED),
        (Situation(can_fork=False), {}, SwitchMethod.COLD),
    ],
)
def test_the_cheapest_valid_method(at: Situation, measured: dict[SwitchMethod, float], method: SwitchMethod) -> None:
    assert choose(at, measured.get, 0.5)[0] is method


def model_folder(path: Path, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"hidden_size": 8, "_name_or_path": str(path), **config}))
    (path / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + os.urandom(8))
    return path


def test_what_is_built_alike_differs_in_the_values_of_weights_alone(tmp_path: Path) -> None:
    one, other = (EngineModel(name, str(model_folder(tmp_path / name))) for name in "ab")
    assert are_alike(one, other)
    assert not are_alike(one, EngineModel("b", other.model, ("--dtype", "float32")))
    configured = []
    for model, policy in ((one, "edf"), (other, "edf"), (other, "sjf")):
        settings = tmp_path / f"settings-{len(configured)}"
        settings.write_text(policy)
        configured.append(replace(model, flags=("--slo-config", str(settings))))
    assert are_alike(*configured[:2]) and not are_alike(*configured[1:])
    assert not are_alike(one, EngineModel("wide", str(model_folder(tmp_path / "wide", hidden_size=16))))
    for file in ("generation_config.json", "chat_template.jinja", "tokenizer.json"):
        changed = model_folder(tmp_path / file)
        (changed / file).write_text("changed")
        assert fingerprint(changed) != fingerprint(Path(one.model)), file
    weights = Path(other.model) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert fingerprint(Path(other.model)) is None, "a file that is cut short would leave an engine without weights"
    assert not are_alike(EngineModel("hub", "org/model"), EngineModel("hub", "org/model"))


def test_a_new_host_begins_with_what_others_of_its_kind_have_measured(tmp_path: Path) -> None:
    store = Store(SqliteDatabase(tmp_path / "store.sqlite"))

    async def turns(costs: Costs, device: str) -> None:
        with ThreadPoolExecutor(1) as executor:
            shared = SharedCosts(costs, store.switch_costs, device, executor)
            await shared.turn()
            costs.note_switch("a", WAKE, 1.0)
            await shared.turn()

    old = Costs(tmp_path / "old.json", "h100")
    for seconds in (2.0, 4.0, 9.0, 1.0, 8.0):
        old.note_switch("b", WAKE, seconds)
    old.note_switch("b", SwitchMethod.COLD, 30.0)
    old.note_switch("b", SwitchMethod.FORKED, 5.0)
    bounded.run(turns(old, "h100"))
    assert not old.unshared
    kept = {cost.step: cost for cost in store.switch_costs.of("h100") if cost.model == "b"}
    assert kept["wake_s"].times == 5 and kept["wake_s"].mean_s == pytest.approx(old.switch_s("b", WAKE))
    new, other = Costs(tmp_path / "new.json", "h100"), Costs(tmp_path / "other.json", "a100")
    new.note_switch("b", WAKE, 7.0)
    bounded.run(turns(new, "h100"))
    bounded.run(turns(other, "a100"))
    assert new.switch_s("b", WAKE) == 7.0, "its own goes before"
    swaps = {(swap.coming, swap.state): swap.seconds for swap in new.swaps(["b"])}
    assert swaps == {("b", ModelState.COLD): 5.0, ("b", ModelState.WARM): 7.0}
    assert other.switch_s("b", WAKE) is None
    store.close()


def test_costs_add_up_to_swaps_and_are_kept(tmp_path: Path) -> None:
    costs = Costs(tmp_path / "costs.json", "cpu")
    costs.note_sleep("a", 1.0)
    costs.note_switch("b", SwitchMethod.COLD, 8.0)
    costs.note_switch("b", WAKE, 2.0)
    costs.note_switch("b", WAKE, 4.0)
    expected = {
        MeasuredSwap("cpu", leaving, "b", state, seconds)
        for leaving, state, seconds in [
            (None, ModelState.COLD, 8.0),
            ("a", ModelState.COLD, 9.0),
            (None, ModelState.WARM, 3.0),
            ("a", ModelState.WARM, 4.0),
        ]
    }
    assert set(costs.swaps(["a", "b"])) == expected
    assert set(Costs(tmp_path / "costs.json", "cpu").swaps(["a", "b"])) == expected
    (tmp_path / "costs.json").write_text("{")
    assert Costs(tmp_path / "costs.json", "cpu").swaps(["a", "b"]) == ()


def test_logs_rotate_and_are_found_by_model(tmp_path: Path) -> None:
    path = engine_logs.log_path(tmp_path, "node/0", "org/chat")
    for number in range(5):
        with path.open("a") as log:
            log.write(f"{number}\n" * 10)
            log.flush()
            assert engine_logs.rotate(path, most_bytes=10)
            log.write("after\n")  # an engine goes on in the emptied file
    assert len(engine_logs.logs_of(tmp_path, "org/chat")) == 1 + engine_logs.KEPT
    assert list(engine_logs.last_lines(tmp_path, "org/chat", 1))[-1] == "node/0: after"
    assert list(engine_logs.last_lines(tmp_path, "org/chat", 2))[-3:] == ["node/0: 4", "node/0: 4", "node/0: after"]
    assert engine_logs.logs_of(tmp_path, "other") == []


def test_logs_that_cannot_be_set_aside_keep_those_that_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk each look replaced an older log by a part of the newest."""
    path = engine_logs.log_path(tmp_path, "node/0", "chat")
    for text in ("first", "second"):
        path.write_text(text)
        assert engine_logs.rotate(path, most_bytes=1)

    def full(source: Path, target: Path) -> None:
        Path(target).write_text("par")
        raise OSError(errno.ENOSPC, "no space")

    path.write_text("third")
    monkeypatch.setattr("shutil.copyfile", full)
    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            engine_logs.rotate(path, most_bytes=1)
    assert sorted(one.read_text() for one in tmp_path.iterdir()) == ["first", "second", "third"]


def test_what_a_door_expects_of_its_requests() -> None:
    requests, body = AwaitedRequests(), json.dumps({"prompt": "x" * 80, "max_tokens": 50, "stream": True}).encode()
    request, durable = stream_of("m", body), line_of("m", LineSize(2.0, None, False))
    requests.begin(request)
    requests.begin(durable)
    sums = requests.sums()
    assert (sums.requests, requests.streams) == (2, 1)
    assert sums.longest_output_tokens == USUAL_OUTPUT_TOKENS and sums.output_tokens == USUAL_OUTPUT_TOKENS + 50.0
    assert requests.drain_s == pytest.approx(USUAL_OUTPUT_TOKENS * 0.02), (
        "a line that is not streamed is given time to end"
    )
    requests.ended(durable, 1.0, broken=False)
    requests.begin(line_of("m", LineSize(2.0, 90, True)))
    assert requests.drain_s == pytest.approx(1.0), "one that another engine can go on with is aborted sooner"
    requests.ended(request, 1.0, broken=True)
    assert requests.streams == 1, "until it is known what became of the engine"
    requests.settle()
    assert requests.streams == 0


@pytest.mark.parametrize(
    ("route", "stated", "limit", "streams"),
    [
        ("/v1/responses", {"input": "x" * 80, "max_output_tokens": 50, "max_tokens": 9, "stream": True}, 50, True),
        ("/v1/messages", {"messages": [], "max_tokens": 50, "stream": True}, 50, True),
        ("/v1/rerank", {"query": "a", "documents": [], "max_tokens": 50, "stream": True}, 1, False),
        ("/v1/embeddings", {"input": "x" * 80}, 1, False),
    ],
)
def test_each_route_has_a_limit_of_its_own(route: str, stated: dict[str, Any], limit: int, streams: bool) -> None:
    """An embedding counted as a reply of usual length, for which a plan kept its model from leaving."""
    request = stream_of("m", json.dumps(stated).encode(), route)
    assert (request.max_tokens, request.streams) == (limit, streams)


def test_a_recording_counts_by_what_is_usual_and_not_by_its_bytes() -> None:
    """25 MB counted as 6 million tokens of a prompt: for minutes no other request would have gone there."""
    request = stream_of("m", b"x" * 25_000_000, "/v1/audio/transcriptions")
    assert request.prompt_tokens == 1024


@pytest.mark.parametrize(
    ("route", "stated", "left"),
    [
        (CHAT, {"max_completion_tokens": None, "max_tokens": 20}, 18),
        (CHAT, {"max_completion_tokens": 9, "max_tokens": 20}, 7),
        (COMPLETIONS, {"max_completion_tokens": 5, "max_tokens": 20}, 18),  # a field of chat's alone
        (COMPLETIONS, {}, 14),
        (CHAT, {}, None),
    ],
)
def test_a_line_that_goes_on_asks_for_what_is_left(route: str, stated: dict[str, Any], left: int | None) -> None:
    prompt: dict[str, Any] = {"prompt": "a"} if route == COMPLETIONS else {"messages": []}
    progress = json.dumps({"prompt": [1], "tokens": [2, 3], "text": "x", "id": "i", "created": 1}).encode()
    body = json.dumps({"model": "m", **prompt, **stated}).encode()
    reply = LineOutput.of(Claimed("l", 2, body, route, "batch", None, progress))
    assert json.loads(reply.body())["max_tokens"] == reply.max_tokens == left


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("content", "goes_on"),
    [
        ("What is it?", True),
        (None, True),
        ([{"type": "text", "text": "What is it?"}], True),
        (["What is it?"], True),
        ([{"type": "text", "text": "What is it?"}, IMAGE], False),
        ([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}], False),
        ([{"image_url": "http://example.org/cat.png"}], False),
        ([{"type": "text", "text": "What is it?", "video_url": "http://example.org/cat.mp4"}], False),
        ({"type": "text"}, False),
    ],
)
def test_a_line_with_more_than_text_is_computed_from_scratch(content: Any, goes_on: bool) -> None:
    """Token ids of a prompt have no images: an engine that went on from them would answer another question."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    body = {"model": "m", "messages": messages, "max_tokens": 9}
    first = LineOutput.of(Claimed("l", 1, json.dumps(body).encode(), "/v1/chat/completions", "batch", None))
    head = {"id": "c", "created": 1, "model": "m"}
    for event in (
        {**head, "prompt_token_ids": [1, 7, 2], "choices": [{"index": 0, "delta": {"content": ""}}]},
        {**head, "choices": [{"index": 0, "delta": {"content": "A cat"}, "token_ids": [5, 6]}]},
    ):
        first.add(b"data: " + json.dumps(event).encode() + b"\n\n")
    before = b'{"prompt":[1,7,2],"tokens":[5,6],"text":"A cat","id":"c","created":1}'
    assert first.progress() == (before if goes_on else None)
    progress = before  # as a version that kept it would have left it
    again = LineOutput.of(replace(first.claimed, attempt=2, progress=progress))
    assert again.path == ("/v1/completions" if goes_on else "/v1/chat/completions")
    assert goes_on or json.loads(again.body()) == body


@pytest.mark.parametrize(("generated", "reason", "goes_on"), [(2, None, True), (2, "stop", False), (3, None, False)])
def test_a_complete_output_is_not_continued(generated: int, reason: str | None, goes_on: bool) -> None:
    """The connection broke off after the last token and before the end of the stream, and a token too many came."""
    body = json.dumps({"model": "m", "prompt": "a", "max_tokens": 3}).encode()
    output = LineOutput.of(Claimed("l", 1, body, COMPLETIONS, "batch", None))
    for number in range(generated):
        choice = {"index": 0, "text": "x", "token_ids": [5], "prompt_token_ids": [1]}
        choice |= {"finish_reason": reason if number == generated - 1 else None}
        output.add(
            b"data: " + json.dumps({"id": "c", "created": 1, "model": "m", "choices": [choice]}).encode() + b"\n\n"
        )
    assert (output.progress() is not None) is goes_on


@pytest.mark.slow
def test_engines_die_with_their_agent_however_it_ends(tmp_path: Path) -> None:
    """The agent is killed, and its engine is gone within the time allowed."""
    code = f"""
import asyncio, os, sys
from pathlib import Path
from sloserve.fleet.agent.engine_spec import EngineSpec
from tests import bounded
from tests.fleet.stand_in.launcher import processes
async def main():
    folder = Path({str(tmp_path)!r})
    engine = await processes().launch(EngineSpec(("m", "--uds", str(folder / "s")), {{}}, folder / "s", folder / "log"))
    while not (folder / "s").exists():
        await asyncio.sleep(0.01)
    print(engine.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with (
        bounded.within("an agent with an engine, and the agent's end"),
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as agent,
    ):
        assert agent.stdout is not None
        engine = psutil.Process(int(agent.stdout.readline()))
        assert engine.is_running()
        agent.kill()
    _, alive = psutil.wait_procs([engine], 60.0)
    assert all(one.status() == psutil.STATUS_ZOMBIE for one in alive), "the engine outlived its agent"
