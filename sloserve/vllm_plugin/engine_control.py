"""Asking the engines from the API process: what the scheduler is doing, and to follow another policy.

:func:`install` gives vLLM's EngineCore methods that its client can call as it calls its own (``call_utility``); they
run in the engine's loop, between two steps. It also makes an engine that runs a loop of its own publish its figures:
the virtual engine, tests, and an engine inside its caller's process do not, and make no page.
"""

import functools
from typing import Any

from sloserve.core.errors import EngineError
from sloserve.scheduler.registry import make_policy, parse_policy

_INSTALLED = "sloserve_status"


def install() -> None:
    """Extends vLLM's engine in this process; a second call changes nothing."""
    from vllm.v1.engine import core

    if hasattr(core.EngineCore, _INSTALLED):
        return
    core.EngineCore.sloserve_status = _status
    core.EngineCore.sloserve_set_policy = _set_policy
    core.EngineCore.sloserve_set_shadow_policy = _set_shadow_policy
    for name in ("EngineCoreProc", "DPEngineCoreProc"):
        cls = getattr(core, name, None)
        if cls is not None and "run_busy_loop" in vars(cls):
            cls.run_busy_loop = _publishing(cls.run_busy_loop)


def _publishing(stock: Any) -> Any:
    @functools.wraps(stock)
    def run_busy_loop(self: Any) -> Any:
        if hasattr(self.scheduler, "publish"):
            self.scheduler.publish(self.engine_index)
        return stock(self)

    return run_busy_loop


# Methods of EngineCore.


def _scheduler(engine: Any) -> Any:
    scheduler = engine.scheduler
    if not hasattr(scheduler, "set_shadow_policy"):
        raise EngineError(f"the engine runs {type(scheduler).__name__}, not sloserve's scheduler")
    return scheduler


def _status(self: Any) -> dict[str, Any]:
    return {"rank": getattr(self, "engine_index", 0), **_scheduler(self).status()}


def _set_policy(self: Any, text: str) -> str:
    return str(_scheduler(self).set_policy(text))


def _set_shadow_policy(self: Any, text: str | None) -> None:
    _scheduler(self).set_shadow_policy(text)


# For the API process.


async def status(async_llm: Any) -> list[dict[str, Any]]:
    """What each engine rank's scheduler is doing, in plain values. Raises: EngineError."""
    return list(await _call_all(async_llm, "sloserve_status"))


async def set_policy(async_llm: Any, text: str) -> list[str]:
    """Makes every rank follow the policy ``text`` from its next step on; returns it as each rank read it.

    Raises: ConfigError, and nothing has changed; EngineError when a rank did not answer.
    """
    _check(text)
    return list(await _call_all(async_llm, "sloserve_set_policy", text))


async def set_shadow_policy(async_llm: Any, text: str | None) -> None:
    """Makes every rank score the plans of ``text``, or of none. Raises: as :func:`set_policy`."""
    if text is not None:
        _check(text)
    await _call_all(async_llm, "sloserve_set_shadow_policy", text)


def _check(text: str) -> None:
    name, options = parse_policy(text)
    make_policy(name, options)


async def _call_all(async_llm: Any, method: str, *args: Any) -> list[Any]:
    from sloserve.vllm_plugin import compat

    try:
        return await compat.call_every_engine(async_llm.engine_core, method, *args)
    except Exception as error:
        raise EngineError(f"the engine did not carry out {method}: {error}") from error
