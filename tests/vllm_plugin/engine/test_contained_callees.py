"""Whatever single function of ours raises, in whatever call of vLLM's: vLLM sees nothing, and serves every request.

``tests/properties/test_faults.py`` raises from lines inside of containments. Here each function that the scheduler's
half calls raises once, instead of its work or after it, in a run with swap space, a shadow policy, a watcher, tracing,
changes of policy, parking, a reset of the KV cache and an abort.
"""

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType, ModuleType
from typing import Any

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics import live_page
from sloserve.engine.metrics.live_page import LiveWriter, find_live_pages
from tests.vllm_plugin.engine.test_traced import tracing as tracing
from tests.whole import WHOLE

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
REQUESTS = 7
LEFT = "r2"
"""The request whose client leaves."""
CALLS_OF_VLLM = {
    "preempt": "preempts by vLLM's own method, outside of any containment",
    "take_back": "changes vLLM's queues",
    "take_over": "changes vLLM's queues",
    "free": "gives blocks back to vLLM",
    "reclaim": "takes blocks from vLLM",
    "on_preemption": "is called by the virtual engine alone",
    "check_model": "is called by the constructor alone, which may raise",
    "configure_logging": "is called by the server alone",
    "call_every_engine": "is called by the server alone",
}
"""Functions that carry out what vLLM does, where an exception is vLLM's own, and functions of other processes."""


class Fault(Exception):
    """A fault of ours."""


OWNERS = (
    "sloserve.engine.policies_in_force:PoliciesInForce", "sloserve.engine.planner:Planner",
    "sloserve.engine.request_table:RequestTable", "sloserve.core.rows:Rows",
    "sloserve.engine.step_counts:StepCounts", "sloserve.engine.shadow:Shadow", "tests.chaos:Chaos",
    "sloserve.scheduler.edf:EDF", "sloserve.scheduler.policy:Policy",
    "sloserve.engine.guards:PlanBudget", "sloserve.engine.guards:Ageing",
    "sloserve.engine.kept_elsewhere:KeptElsewhere", "sloserve.engine.adapters_in_use:AdaptersInUse",
    "sloserve.engine.preemption_marks:PreemptionMarks",
    "sloserve.engine.step_limits", "sloserve.vllm_plugin.engine.observers:Observers",
    "sloserve.engine.guards", "sloserve.engine.held_plan:HeldPlan", "sloserve.engine.swap.store:SwapStore",
    "sloserve.engine.swap.control:SwapControl", "sloserve.engine.swap.control:TurnWaits",
    "sloserve.engine.swap.link_clock:LinkClock", "sloserve.vllm_plugin.engine.swapping:Swapping",
    "sloserve.vllm_plugin.engine.swap_loads:SwapLoads",
    "sloserve.vllm_plugin.engine.abandoned_loads:AbandonedLoads", "sloserve.vllm_plugin.swap.connector:SwapConnector",
    "sloserve.engine.step_clock:StepClock", "sloserve.core.clock:SteadyClock",
    "sloserve.vllm_plugin.engine.engine_stats:EngineStats", "sloserve.engine.stages:Stages",
    "sloserve.vllm_plugin.engine.watched:Watched",
    "sloserve.vllm_plugin.engine.live_numbers:LiveNumbers",
    "sloserve.engine.metrics.live_page:LiveWriter",
    "sloserve.vllm_plugin.engine.traced:Traced", "sloserve.vllm_plugin.engine.vllm_port:VllmPort",
    "sloserve.vllm_plugin.engine.vllm_port:VllmReader", "sloserve.vllm_plugin.engine.apply:StockLimits",
    "sloserve.vllm_plugin.engine.compat", "sloserve.vllm_plugin.engine.kv_loads",
    "sloserve.vllm_plugin.engine.plans_off", "sloserve.vllm_plugin.engine.apply", "sloserve.vllm_plugin.engine.causes",
    "sloserve.vllm_plugin.engine.step_load", "sloserve.vllm_plugin.engine.scheduler:SLOScheduler",
)  # fmt: skip
"""Classes and modules whose functions SLOScheduler and SwapConnector call, directly or not."""


def functions(owner: Any) -> list[str]:
    """Return the names of the functions and properties of a class or module that this test has raise."""
    found = []
    for name, value in sorted(vars(owner).items()):
        is_own = inspect.isfunction(value) and (not isinstance(owner, ModuleType) or value.__module__ == owner.__name__)
        if name in CALLS_OF_VLLM or name.startswith("__") or not (is_own or isinstance(value, property)):
            continue
        if inspect.iscoroutinefunction(value) or is_called_by_others(owner, name):
            continue
        found.append(name)
    return found


def is_called_by_others(owner: Any, name: str) -> bool:
    """Return whether vLLM or the server calls this method of one of the two classes that stand before vLLM."""
    is_vllms = any(name in vars(base) for base in getattr(owner, "__mro__", ()) if base.__module__.startswith("vllm."))
    if owner.__name__ == "SLOScheduler":
        return is_vllms or not name.startswith("_")
    return owner.__name__ == "SwapConnector" and (is_vllms or name in ("attach", "use"))


def test_no_method_that_vllm_calls_stands_outside_of_the_contained_scheduler() -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from sloserve.vllm_plugin import SLOScheduler

    overridden = {
        name for name in vars(SLOScheduler) if hasattr(AsyncScheduler, name) and callable(vars(SLOScheduler)[name])
    }
    assert overridden - {"__new__", "__init__"} == set()


def is_called_by_the_scheduler() -> bool:
    """Return whether SLOScheduler or SwapConnector is being called; the virtual engine uses some of ours itself."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(
            tuple(
                f"vllm_plugin/{name}.py"
                for name in ("engine/contained_scheduler", "engine/scheduler", "swap/connector")
            )
        ):
            return True
        frame = frame.f_back
    return False


class Once:
    """A function that raises at one of its calls, and then never again."""

    def __init__(self, stock: Callable[..., Any], at: int, after: bool) -> None:
        self._stock, self._at, self._after = stock, at, after
        self.calls, self.is_armed = 0, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_armed or not is_called_by_the_scheduler():
            return self._stock(*args, **kwargs)
        self.calls += 1
        if self.calls != self._at:
            return self._stock(*args, **kwargs)
        if self._after:
            self._stock(*args, **kwargs)
        raise Fault(self._stock.__qualname__)


def replace(patch: pytest.MonkeyPatch, owner: Any, name: str, once: Once) -> None:
    """Put ``once`` in the place of a function, wherever a module of ours has it by name."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return once(*args, **kwargs)

    stock = vars(owner)[name]
    if not isinstance(owner, ModuleType):
        patch.setattr(owner, name, property(function) if isinstance(stock, property) else function)
        return
    for module in [one for key, one in sys.modules.items() if key.startswith("sloserve.")]:
        if vars(module).get(name) is stock:
            patch.setattr(module, name, function)


def workload() -> list[WorkloadRequest]:
    names = DEFAULT_CLASSES.names
    return [
        WorkloadRequest(
            f"r{i}",
            0.004 * i,
            20 + 7 * (i % 4),
            14 + 5 * (i % 3),
            DEFAULT_CLASSES.slo(names[i % len(names)], Targets(ttft_s=0.2, e2e_s=2.0)),
        )
        for i in range(REQUESTS)
    ]


def between_steps(engine: Any, number: int) -> None:
    """Do what a server asks of an engine between two steps."""
    from vllm.v1.core.sched.interface import PauseState

    scheduler = engine.scheduler
    if number == 12:
        scheduler.set_policies("rr:interval_steps=2", "sjf")
    elif number == 16:
        scheduler.set_policies("chaos:preempt=0.4:pause=0.1:limit=0.1:illegal=0", "edf")
    elif number == 22:
        scheduler.park(True)
        scheduler.reset_prefix_cache()
        scheduler.set_pause_state(PauseState.UNPAUSED)
    elif number == 30 and LEFT in scheduler.requests:
        engine._abort(LEFT)
    elif number == 34:
        scheduler.weights_changed()


@pytest.fixture
def run(build: Build, tracing: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Serves the workload with one function that raises; returns how often that was called before the end."""
    from sloserve.engine import policies_in_force as module

    monkeypatch.setattr(live_page, "WATCH_S", 1e9)
    monkeypatch.setattr("sloserve.vllm_plugin.engine.watched.FRAME_EVERY_S", 0.0)
    monkeypatch.setattr(module, "PLAN_AGAIN_S", 0.01)
    monkeypatch.setattr(module, "MOST_PLAN_AGAIN_S", 0.02)
    folders = (tmp_path / str(number) for number in itertools.count())

    def serve(once: Once | None = None) -> Any:
        folder = next(folders)
        folder.mkdir()
        section = {"swapping": "always", "shadow_policy": "edf"}
        size = {"kv_blocks": 16, "max_num_seqs": 4, "max_model_len": 128, "swap_space_gib": 0.01}
        engine = build("chaos:preempt=0.4:pause=0.1:limit=0.1:illegal=0", section=section, **size)
        engine.scheduler.show_on(LiveWriter(len(DEFAULT_CLASSES.names), 0, folder))
        (reader,) = find_live_pages(folder)
        reader.watch(0.0)
        steps, apply = itertools.count(1), engine._apply

        def applied(*args: Any) -> None:
            apply(*args)
            # What is asked of an engine between two steps may fail, and says so to who asked.
            with suppress(Fault):
                between_steps(engine, next(steps))

        engine._apply = applied
        if once is not None:
            once.is_armed = True
        log = engine.run(workload())
        if once is not None:
            once.is_armed = False
        scheduler = engine.scheduler
        completed = {r.request.request_id: r.token_times_s.size for r in log.requests if r.request.request_id != LEFT}
        assert completed == {r.request_id: r.output_tokens for r in workload() if r.request_id != LEFT}
        assert not scheduler.requests and not scheduler.running and not scheduler.waiting
        assert (scheduler.max_num_scheduled_tokens, scheduler.max_num_running_reqs) == (64, 4)
        assert scheduler.scheduler_config.long_prefill_token_threshold == 0
        return log.counters

    return serve


def test_the_run_without_a_fault_does_all_that_may_fail(run: Callable[..., Any]) -> None:
    counters = run()
    assert not counters.keys() & {"internal_errors", "plan_errors"}
    for name in ("plans", "evictions", "paused_steps", "swap_stores", "swap_loads"):
        assert counters[name] > 0, name


def cases() -> Iterator[tuple[int, bool]]:
    """At which call a function raises, and whether after its work.

    ``make test`` has one case of every other function, ``make whole`` five of each.
    """
    return itertools.cycle([(1, False), (3, True), (2, False), (1, True), (7, False)])


@pytest.mark.parametrize("name_of_owner", OWNERS)
def test_whatever_raises_once_vllm_goes_on(
    run: Callable[..., Any], name_of_owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = resolve_name(name_of_owner)
    raised = 0
    turn = cases()
    names = functions(owner)
    for number, name in enumerate(names[::2] + names[1::2]):
        if raised and 2 * number >= len(names) and not WHOLE:
            break
        for at, after in [next(turn) for _ in range(5 if WHOLE else 1)]:
            stock = vars(owner)[name]
            once = Once(stock.fget if isinstance(stock, property) else stock, at, after)
            with monkeypatch.context() as patch:
                replace(patch, owner, name, once)
                try:
                    run(once)
                except Exception as error:
                    raise AssertionError(f"{owner.__name__}.{name}, call {at}, {after=}: {error!r}") from error
            raised += once.calls >= at
    assert raised > 0, "nothing of it was called"
