"""The world moves while KV is swapped: resets, pauses, sleeps and new weights, each with loads in flight.

No control call raises (a server would answer 500), none waits for a load that does not end, KV of old weights never
comes back, and no block of the GPU or of the host is lost.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from tests.equality.engine import ENGINE_WARNINGS, Engine, EngineConfig, started
from tests.equality.service import Service, as_server

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

PROMPTS = {f"r{i}": f"Request {i}: " + "tell me about the sea. " * (i % 4) for i in range(8)}
WORKER = "sloserve.vllm_plugin.sleeping_worker.SleepingCPUWorker"
LOADS, TOKENS = 8, 40


class HeldLoads:
    """A copier whose loads begin when they are let go."""

    def __init__(self, copier: Any) -> None:
        self._copier, self._held, self.holding = copier, list[tuple[Any, ...]](), True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._copier, name)

    def load(self, *order: Any) -> None:
        self._held.append(order)
        if not self.holding:
            self.let_go()

    def let_go(self, most: int | None = None) -> None:
        """most: how many, while those after them stay held; ``None``: all, and those to come."""
        self.holding = most is not None
        held, self._held = self._held[:most], self._held[len(self._held) if most is None else most :]
        for order in held:
            self._copier.load(*order)


@pytest.fixture(
    scope="module",
    params=[pytest.param(True, id="async-cache"), pytest.param(False, id="sync", marks=pytest.mark.whole)],
)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    pytest.importorskip("vllm.model_executor.model_loader.reload.inplace", reason="the worker reloads as 0.32 does")
    config = EngineConfig(async_scheduling=request.param, prefix_caching=request.param, host_blocks=64)
    with started(config, worker_cls=WORKER, num_gpu_blocks_override=64) as engine:
        yield engine


class World(Service):
    """An engine with eight requests whose loads are in flight."""

    def __init__(self, engine: Engine, tokens: int = TOKENS) -> None:
        clock = ManualClock()
        engine.use_sloserve({"policy": "fcfs", "swapping": "always"}, clock=clock)
        super().__init__(engine, clock)
        self.copier = hold_loads()
        self.scheduler, self.swapping = engine.scheduler, engine.scheduler._swapping
        self.store, self.counters = self.swapping._connector.store, engine.scheduler.slo_counters
        for name, prompt in PROMPTS.items():
            self.send(name, prompt, max_tokens=tokens)
        self.until(lambda: all(request.num_output_tokens > 4 for request in self.live()))
        self.preempt_all()
        self.until(lambda: len(self.loading()) == LOADS)

    def live(self) -> list[Any]:
        return list(self.scheduler.requests.values())

    def loading(self) -> list[Any]:
        from vllm.v1.request import RequestStatus

        return [r for r in self.live() if r.status == RequestStatus.WAITING_FOR_REMOTE_KVS]

    def preempt_all(self, most: int = LOADS) -> None:
        from sloserve.vllm_plugin.engine.apply import preempt

        preempt(self.scheduler, list(reversed(self.scheduler.running))[:most])

    def spread(self) -> None:
        """From now on two requests have loaded, and two are kept and do not load; the others' loads are stuck."""
        from vllm.v1.core.sched.interface import PauseState

        for request in reversed(self.loading()[:2]):
            self.store.keep_loading(request.request_id)
            self.swapping.loads.give_up(request)
        self.copier.let_go(4)
        self.core.scheduler.set_pause_state(PauseState.PAUSED_ALL)  # so that nobody is admitted
        self.until(lambda: len(self.scheduler.finished_recving_kv_req_ids) == 2)
        self.core.scheduler.set_pause_state(PauseState.UNPAUSED)

    def tokens(self) -> dict[str, list[int]]:
        """Prompt and output so far of each request, by its name."""
        return {r.request_id.rpartition("-")[0]: list(r.all_token_ids) for r in self.live()}

    def wake(self) -> None:
        if getattr(self.core.model_executor.driver_worker.worker, "level", 0) == 2:
            self.core.wake_up(["weights"])
            self.core.collective_rpc("reload_weights")
        if self.core.is_sleeping():
            self.core.wake_up(None if self.core.model_executor.is_sleeping else ["scheduling"])

    def end(self) -> dict[str, list[int]]:
        """Lets the loads go and serves to the end. Returns: tokens by request."""
        self.copier.let_go()
        self.until(lambda: not self.core.has_work())
        assert self.engine.idle() and not self.store.used_blocks and not self.swapping.loads.are_copying()
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        return self.outputs


def hold_loads() -> HeldLoads:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    worker = get_kv_transfer_group()._worker
    worker._copier = HeldLoads(getattr(worker._copier, "_copier", worker._copier))
    return worker._copier


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    with as_server(engine):
        yield World(engine)


def answers(engine: Engine, prompts: dict[str, Any], tokens: dict[str, int]) -> dict[str, list[int]]:
    """What the weights of now say to prompts, each served without anybody beside it being preempted."""
    clock = ManualClock()
    engine.use_sloserve({"policy": "fcfs"}, clock=clock)
    service = Service(engine, clock)
    for name, prompt in prompts.items():
        service.send(name, prompt, max_tokens=tokens[name])
    service.until(lambda: engine.idle())
    return service.outputs


@pytest.fixture(scope="module")
def expected(engine: Engine) -> dict[str, list[int]]:
    with as_server(engine):
        return answers(engine, PROMPTS, dict.fromkeys(PROMPTS, TOKENS))


CALLS: dict[str, Callable[[World], object]] = {
    "reset": lambda world: world.core.reset_prefix_cache(),
    "reset-running": lambda world: world.core.reset_prefix_cache(True, True),
    "pause-keep": lambda world: world.core.pause_scheduler("keep"),
    "pause-keep-cache": lambda world: world.core.pause_scheduler("keep", False),
    "pause-wait": lambda world: world.core.pause_scheduler("wait"),
    "sleep-0": lambda world: world.core.sleep(0, "keep"),
    "sleep-1": lambda world: world.core.sleep(1, "keep"),
    "sleep-2": lambda world: world.core.sleep(2, "keep"),
    "reload": lambda world: world.core.collective_rpc("reload_weights"),
    "park-0": lambda world: world.core.sloserve_park(0) and world.core.sleep(0, "keep"),
    "park-1": lambda world: world.core.sloserve_park(1) and world.core.sleep(1, "keep"),
}
MAX_WAIT_S = 5.0
"""Of an answer, in the virtual time of turns."""


@pytest.mark.parametrize("stuck", [False, True], ids=["", "stuck"])
@pytest.mark.parametrize("what", CALLS)
def test_no_call_fails_or_waits_long(world: World, expected: Any, what: str, stuck: bool) -> None:
    """Loads that end with the next step, and loads that do not end before it is all over."""
    began_s = world.clock.now_s()
    if not stuck:
        world.copier.let_go()
    world.call(lambda: CALLS[what](world))
    if what != "pause-wait" or stuck:  # it waits for the requests themselves
        assert world.clock.now_s() - began_s < (MAX_WAIT_S if stuck else 0.5)
    world.wake()
    assert world.end() == expected
    again = {"park-0": 2 * LOADS, "park-1": 2 * LOADS}.get(what, LOADS)
    assert world.counters["swap_loads"] == again or stuck
    assert world.counters["internal_errors"] == 0


@pytest.mark.parametrize("what", ["pause", "sleep"])
def test_requests_are_aborted_while_their_loads_are_stuck(world: World, expected: Any, what: str) -> None:
    began_s, core = world.clock.now_s(), world.core
    world.call(lambda: core.pause_scheduler("abort") if what == "pause" else core.sleep(1, "abort"))
    assert world.clock.now_s() - began_s < MAX_WAIT_S
    world.engine.llm.output_processor.abort_requests(list(world.engine.llm.output_processor.request_states), True)
    world.wake()
    world.send("r0", PROMPTS["r0"], max_tokens=TOKENS)
    assert world.end() == {"r0": expected["r0"]}


def test_a_reset_does_not_wait_for_the_load_of_an_aborted_request(world: World, expected: Any) -> None:
    world.engine.llm.abort_request(["r2", "r5"])
    assert world.core.reset_prefix_cache(True, True)
    assert world.end() == {name: tokens for name, tokens in expected.items() if name not in ("r2", "r5")}


def test_what_was_not_copied_before_a_reset_is_not_spared(world: World, expected: Any) -> None:
    """An engine in its caller's process sleeps at once, before the step that would have copied."""
    world.copier.let_go()
    world.until(lambda: len(world.scheduler.running) == LOADS)
    world.core.sloserve_park(1)
    assert world.core.reset_prefix_cache(True, True)
    world.core.model_executor.sleep(1)
    world.wake()
    assert world.end() == expected
    assert world.counters["swap_dropped_epoch"] == LOADS


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model like the tiny one, that says something else."""
    import torch
    from safetensors.torch import load_file, save_file

    from sloserve.vllm_plugin.server.tiny_model import tiny_model_path

    path = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(tiny_model_path(), path)
    weights = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for name, one in weights.items():
        if "proj" in name:
            weights[name] = one + 0.1 * torch.randn(one.shape, generator=generator)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.mark.parametrize("how", ["pause", "reload", "park"])
def test_kv_of_old_weights_never_comes_back(world: World, other_weights: Path, how: str) -> None:
    """Of eight requests four load, of two the load is over, and two are merely kept: all go on as if new."""
    from sloserve.vllm_plugin.server.tiny_model import tiny_model_path

    core = world.core

    def new_weights(path: Path) -> None:
        if how == "pause":
            world.call(lambda: core.pause_scheduler("keep"))
        elif how == "park":
            world.call(lambda: core.sloserve_park(1) and core.sleep(1, "keep"))
            core.wake_up(["weights"])
        elif world.engine.config.prefix_caching:
            core.reset_prefix_cache()  # vLLM itself would find KV of old weights in its prefix cache
        core.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})

    try:
        world.spread()
        new_weights(other_weights)
        so_far = world.tokens()
        world.wake()
        outputs = world.end()
        left = {name: len(PROMPTS[name]) + TOKENS - len(tokens) for name, tokens in so_far.items()}
        expected = answers(world.engine, so_far, left)
        for name, tokens in so_far.items():
            assert tokens[len(PROMPTS[name]) :] + expected[name] == outputs[name]
        assert sum(world.counters[f"swap_dropped_{reason}"] for reason in ("epoch", "late")) == (
            8 if how == "park" else 6
        )
    finally:
        core.collective_rpc("reload_weights", kwargs={"weights_path": str(tiny_model_path())})


@pytest.mark.parametrize("how", ["park-0", "park-1", "preempted", "running"])
def test_no_reply_is_of_two_models(world: World, expected: Any, other_weights: Path, how: str) -> None:
    """vLLM marks the tokens of each reply by the weights that made them. What has begun goes on with its own."""
    from vllm.v1.core.sched.interface import PauseState

    from sloserve.vllm_plugin.server.tiny_model import tiny_model_path

    core, names = world.core, sorted(PROMPTS)
    home, other = str(tiny_model_path()), str(other_weights)
    own = core.get_weight_version()
    world.copier.let_go()
    world.until(lambda: len(world.scheduler.running) == LOADS)
    if how.startswith("park"):
        world.call(lambda: CALLS[how](world))
        assert "parked" in core.sloserve_reload_refused(paused=False)
    elif how == "preempted":
        world.preempt_all()
        assert core.sloserve_reload_refused(paused=False).startswith(f"{LOADS} outputs have begun")
        core.scheduler.set_pause_state(PauseState.PAUSED_NEW)
        assert core.sloserve_reload_refused(paused=True).startswith(f"{LOADS} outputs have begun")
    else:
        assert core.sloserve_reload_refused(paused=False) is None  # they will have ended when the pause has come
    assert core.sloserve_reload(other, "other") == core.sloserve_reload_refused(paused=True) is not None
    if how == "preempted":
        core.scheduler.set_pause_state(PauseState.UNPAUSED)
    world.wake()
    assert world.end() == expected
    assert world.versions == dict.fromkeys(names, [own])

    began = world.outputs.copy()
    try:
        world.send("before", PROMPTS["r0"], max_tokens=TOKENS)
        world.until(lambda: len(world.scheduler.running) == 1)
        assert core.sloserve_reload_refused(paused=False) is None
        core.scheduler.set_pause_state(PauseState.PAUSED_NEW)
        world.send("after", PROMPTS["r0"], max_tokens=TOKENS)
        world.call(lambda: core.pause_scheduler("wait"))
        assert core.sloserve_reload_refused(paused=True) is None
        core.sloserve_reload(other, "other")
        core.resume_scheduler()
        outputs = world.end()
        assert outputs["before"] == began["r0"] != outputs["after"]
        assert (world.versions["before"], world.versions["after"]) == ([own], ["other"])
    finally:
        core.pause_scheduler("wait")
        core.sloserve_reload(home, own)
        core.resume_scheduler()


@pytest.mark.parametrize("state", ["running", "loading", "mixed"])
def test_twenty_sleeps_lose_no_stream_and_no_kv(engine: Engine, state: str) -> None:
    """Parked before each sleep, whether they run or load: no request is lost, no token computed twice."""
    tokens = 100
    with as_server(engine):
        expected = answers(engine, PROMPTS, dict.fromkeys(PROMPTS, tokens))
        world = World(engine, tokens)
        loading = {"running": 0, "loading": LOADS, "mixed": 4}[state]
        for _ in range(20):
            world.copier.let_go()
            world.until(lambda: len(world.scheduler.running) == LOADS)
            world.copier.holding = True
            world.preempt_all(loading)
            # Of some the prefix cache has all: they run at once.
            world.until(lambda: len(world.loading()) + len(world.scheduler.running) == LOADS)
            parked = world.core.sloserve_park(1)
            world.copier.let_go()
            assert parked == {"requests": LOADS, "kept": LOADS}
            world.call(lambda: world.core.sleep(1, "keep"))
            assert not world.scheduler.running and not world.loading()
            world.wake()
        assert world.end() == expected
        lost = {
            key: n for key, n in world.counters.items() if "refused" in key or "dropped" in key or "failures" in key
        }
        assert not lost.keys() - {"swap_dropped_found_elsewhere"}, lost  # the prefix cache may have as much


@pytest.mark.parametrize("level", [1, 2])
def test_memory_goes_and_outputs_come_back(engine: Engine, expected: Any, level: int) -> None:
    """Of the worker that stands in for a GPU's: while it sleeps, no page of weights and KV is in memory."""
    worker = engine.core.model_executor.driver_worker.worker

    def resident() -> list[int]:
        return [worker.resident_bytes(tag) for tag in ("weights", "kv_cache")]

    with as_server(engine):
        assert min(resident()) > 0
        world = World(engine)
        world.call(lambda: world.core.sleep(level, "keep"))
        assert resident() == [0, 0]
        world.wake()
        assert resident()[0] > 0
        assert world.end() == expected
