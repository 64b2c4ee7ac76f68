"""What the parts of a fleet rely on in an engine: the same tests for the stand-in and for vLLM's server with ours."""

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.numpy import load_file, save_file

from tests import bounded
from tests.fleet.stand_in.engine import StandIn, reply
from tests.fleet.stand_in.server import server
from tests.other_vllm import IS_0_33

KEY, MODEL = "admin-secret", "chat"
ADMIN = {"Authorization": f"Bearer {KEY}"}
WORKER = "sloserve.vllm_plugin.sleeping_worker.SleepingCPUWorker"
PROMPT = "The sea, the sea."
LIMIT_S = 120.0


class Client(httpx.Client):
    """Of an engine on a unix socket."""

    def __init__(self, socket: Path) -> None:
        super().__init__(
            transport=httpx.HTTPTransport(uds=str(socket), retries=8), base_url="http://engine", timeout=LIMIT_S
        )

    def done(self, path: str, body: Any = None, **params: str | int) -> Any:
        admin = ADMIN if path.startswith("/sloserve/") else {}
        answer = self.post(path, json=body, params=params, headers=admin).raise_for_status()
        return answer.json() if answer.content else None

    def complete(self, prompt: str | list[int], tokens: int = 12, **more: Any) -> dict[str, Any]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
        (choice,) = self.done("/v1/completions", body)["choices"]
        return dict(choice)

    def stream(self, tokens: int = 12) -> "Streamed":  # type: ignore[override]
        return Streamed(self, {"model": MODEL, "prompt": PROMPT, "max_tokens": tokens})


class Streamed:
    """A stream that another thread reads. text: so far."""

    def __init__(self, client: Client, body: dict[str, Any]) -> None:
        self._body = {"temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True, **body}
        self._client, self.tokens, self.begun = client, list[int](), threading.Event()
        self.reason: str | None = None
        self.ended: Future[None] = _THREADS.submit(self._read)

    def _read(self) -> None:
        with httpx.Client.stream(self._client, "POST", "/v1/completions", json=self._body) as answer:
            for line in answer.raise_for_status().iter_lines():
                if line.startswith("data: {"):
                    (choice,) = httpx.Response(200, content=line.removeprefix("data: ")).json()["choices"]
                    self.tokens += choice.get("token_ids") or []
                    self.reason = choice["finish_reason"]
                    self.begun.set()


_THREADS = ThreadPoolExecutor(8)


@pytest.fixture(scope="module", params=["stand-in", pytest.param("vllm", marks=[pytest.mark.slow, pytest.mark.vllm])])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    socket = tmp_path_factory.mktemp("run") / "engine.sock"
    started = _stand_in(socket) if request.param == "stand-in" else _vllm(socket)
    for _ in started:
        with Client(socket) as client:
            yield client


def _stand_in(socket: Path) -> Iterator[None]:
    running = server(StandIn(MODEL, step_s=0.001), str(socket), KEY)
    thread = threading.Thread(target=running.run)
    thread.start()
    with bounded.within("the stand-in to start"):
        while not running.started:
            time.sleep(0.001)
    yield
    running.should_exit = True
    with bounded.within("the end of the stand-in"):
        thread.join()


def _vllm(socket: Path) -> Iterator[None]:
    from tests.forked import Command

    flags = ["--served-model-name", MODEL, "--max-num-seqs", "4", "--swap-space-gib", "0.02", "--worker-cls", WORKER]
    env = {"SLOSERVE_ADMIN_KEY": KEY, "VLLM_SERVER_DEV_MODE": "1"}
    process = Command(["serve", "builtin:tiny", "--uds", str(socket), *flags], env)
    log: list[str] = []
    try:
        with bounded.within("the server to be ready", 200.0):
            for line in process.stdout:
                log.append(line)
                if "sloserve is ready" in line:
                    break
            else:
                pytest.fail("the server did not start:\n" + "".join(log[-60:]))
        reader = threading.Thread(target=log.extend, args=(process.stdout,))
        reader.start()
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
        with bounded.within("the end of the server's output"):
            reader.join()
    finally:
        process.kill()
        process.stdout.close()


def test_it_says_what_it_serves_and_refuses_the_rest(engine: Client) -> None:
    assert engine.get("/health").status_code == 200
    assert [card["id"] for card in engine.get("/v1/models").json()["data"]] == [MODEL]
    answer = engine.post("/v1/completions", json={"model": "other", "prompt": "a"}, headers={"x-request-id": "r-1"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (404, "r-1")
    assert "`other`" in answer.json()["error"]["message"]
    assert engine.post("/v1/completions", json={"model": MODEL}).status_code == 400
    assert engine.post("/sloserve/park").status_code == 401
    (rank,) = engine.get("/sloserve/status", headers=ADMIN).json()
    before = rank["scheduled_tokens"]
    assert rank["running"] == 0.0 and len(engine.complete(PROMPT, 3)["text"]) > 0
    (rank,) = engine.get("/sloserve/status", headers=ADMIN).json()
    assert rank["scheduled_tokens"] >= before + 3


def test_a_reply_is_the_same_in_one_piece_and_streamed_and_goes_on_from_its_half(engine: Client) -> None:
    whole = engine.complete(PROMPT, return_token_ids=True)
    streamed = engine.stream()
    streamed.ended.result(LIMIT_S)
    assert streamed.tokens == whole["token_ids"] and len(streamed.tokens) == 12
    assert whole["finish_reason"] == streamed.reason == "length"
    half = engine.complete([*whole["prompt_token_ids"], *streamed.tokens[:6]], 6, return_token_ids=True)
    assert half["token_ids"] == streamed.tokens[6:]


def test_chat(engine: Client) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
    answer = engine.done("/v1/chat/completions", body)
    assert answer["model"] == MODEL and answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["completion_tokens"] <= 4


@pytest.mark.parametrize("level", [1, 2])
def test_it_answers_after_a_sleep_as_before(engine: Client, level: int) -> None:
    before = engine.complete(PROMPT)
    # vLLM before 0.32 answers both routes without a body.
    assert engine.done("/sleep", level=level, mode="wait") in ({"status": "sleeping", "level": level}, None)
    assert engine.get("/is_sleeping").json() == {"is_sleeping": True}
    assert engine.get("/health").status_code == 200, "health is no proof that it serves"
    if level == 2:
        assert (engine.done("/wake_up", tags="weights") or {"status": "sleeping"})["status"] == "sleeping"
        assert engine.done("/collective_rpc", {"method": "reload_weights"}) == {"results": [None]}
        assert (engine.done("/wake_up", tags="kv_cache") or {"status": "awake"})["status"] == "awake"
    else:
        assert (engine.done("/wake_up") or {"status": "awake"})["status"] == "awake"
    assert engine.get("/is_sleeping").json() == {"is_sleeping": False}
    assert engine.complete(PROMPT) == before


def test_a_paused_engine_queues_in_silence(engine: Client, request: pytest.FixtureRequest) -> None:
    """The stand-in pauses as vLLM did before 0.33, which answers requests of such a pause with 503."""
    if IS_0_33 and request.node.callspec.params["engine"] == "vllm":
        pytest.skip("this vLLM refuses requests while it is paused")
    engine.done("/pause", mode="wait")
    waiting = engine.stream()
    assert engine.get("/is_paused").json() == {"is_paused": True}
    assert not waiting.begun.wait(0.05)
    engine.done("/resume")
    waiting.ended.result(LIMIT_S)
    assert len(waiting.tokens) == 12


def test_a_pause_that_aborts_ends_streams_with_a_reason(engine: Client) -> None:
    running = engine.stream(2000)
    running.begun.wait(LIMIT_S)
    engine.done("/pause", mode="abort")
    running.ended.result(LIMIT_S)
    assert running.reason == "abort" and 0 < len(running.tokens) < 2000
    engine.done("/resume")


@pytest.mark.slow
def test_a_parked_stream_goes_on(engine: Client) -> None:
    expected = engine.complete(PROMPT, 200, return_token_ids=True)["token_ids"]
    running = engine.stream(200)
    running.begun.wait(LIMIT_S)
    assert [set(rank) for rank in engine.done("/sloserve/park", {"level": 1})] == [{"requests", "kept"}]
    so_far = len(running.tokens)
    assert so_far < 200 and not running.ended.done()
    engine.done("/sloserve/unpark")
    running.ended.result(LIMIT_S)
    assert running.tokens == expected


@pytest.mark.slow
def test_other_weights_come_in_place_with_their_name(engine: Client, tmp_path: Path) -> None:
    other = tmp_path / "other"
    home = engine.get("/v1/models").json()["data"][0]["root"]
    if (Path(home) / "model.safetensors").exists():
        shutil.copytree(home, other)
        tensors = load_file(other / "model.safetensors")
        save_file({name: tensor[::-1].copy() for name, tensor in tensors.items()}, other / "model.safetensors")
    before = engine.complete(PROMPT)
    assert engine.post("/sloserve/reload", json={"weights_path": "", "model": "a"}, headers=ADMIN).status_code == 400
    assert engine.complete(PROMPT) == before, "a path that has no weights changes nothing"
    assert engine.done("/sloserve/reload", {"weights_path": str(other), "model": "other"}) == {"model": "other"}
    assert [card["id"] for card in engine.get("/v1/models").json()["data"]] == ["other"]
    assert engine.post("/v1/completions", json={"model": MODEL, "prompt": "a"}).status_code == 404
    body = {"model": "other", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    changed = engine.done("/v1/completions", body)
    assert changed["model"] == "other" and changed["choices"][0]["text"] != before["text"]
    engine.done("/sloserve/reload", {"weights_path": home, "model": MODEL})
    assert engine.complete(PROMPT) == before


@pytest.mark.slow
@pytest.mark.parametrize("how", ["park 0", "park 1", "sleep", "pause"])
def test_a_reply_that_waits_keeps_its_weights(engine: Client, how: str) -> None:
    """Other weights are refused while it is parked; it goes on as if nobody had asked."""
    home = engine.get("/v1/models").json()["data"][0]["root"]
    expected = engine.complete(PROMPT, 200, return_token_ids=True)["token_ids"]
    running = engine.stream(200)
    running.begun.wait(LIMIT_S)
    if how.startswith("park"):
        engine.done("/sloserve/park", {"level": int(how[-1])})
    else:
        engine.done(f"/{how}", mode="keep", **({"level": 1} if how == "sleep" else {}))
    for _ in range(2):
        answer = engine.post("/sloserve/reload", json={"weights_path": home, "model": "other"}, headers=ADMIN)
        assert (answer.status_code, "POST /sloserve/unpark" in answer.text) == (409, True)
    assert not running.ended.done() and len(running.tokens) < 200
    assert [card["id"] for card in engine.get("/v1/models").json()["data"]] == [MODEL]
    engine.done("/sloserve/unpark")
    running.ended.result(LIMIT_S)
    assert running.tokens == expected and running.reason == "length"
    assert engine.done("/sloserve/reload", {"weights_path": home, "model": MODEL}) == {"model": MODEL}
    assert engine.complete(PROMPT, 200, return_token_ids=True)["token_ids"] == expected


def test_what_the_stand_in_says_follows_from_weights_and_text(engine: Client) -> None:
    if engine.get("/stand_in").status_code == 200:
        assert engine.complete("abc", 5)["text"] == reply(MODEL, "abc", 5)
