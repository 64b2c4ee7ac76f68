"""Asking the engines from the API process: what the scheduler is doing, and to follow another policy.

All ranks follow a change or none does. Texts of policies come over the network here: their options name no files.

:func:`install` gives vLLM's EngineCore methods that its client can call as it calls its own (``call_utility``); they
run in the engine's loop, between two steps. It also makes an engine that runs a loop of its own publish its figures:
the virtual engine, tests, and an engine inside its caller's process do not, and make no page.
"""

import asyncio
import functools
import uuid
from collections.abc import Awaitable
from typing import Any, Final

from sloserve.core.errors import ConfigError, EngineError
from sloserve.scheduler.registry import make_policy, parse_policy

_INSTALLED = "sloserve_status"
_CHANGED = "sloserve_changed"
"""Where an engine remembers the last change of its policies: the change's id, and both policies before it."""

ANSWER_LIMIT_S = 60.0
"""An engine answers between two steps; a first one that compiles takes tens of seconds."""
UNPARK: Final = "/sloserve/unpark"
"""The route that has a paused engine go on."""


def install() -> None:
    """Extends vLLM's engine in this process; a second call changes nothing."""
    from vllm.v1.engine import core

    if hasattr(core.EngineCore, _INSTALLED):
        return
    core.EngineCore.sloserve_status = _status
    core.EngineCore.sloserve_set_policies = _set_policies
    core.EngineCore.sloserve_undo_policies = _undo_policies
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


def scheduler_of(engine: Any) -> Any:
    scheduler = engine.scheduler
    if not hasattr(scheduler, "set_policies"):
        raise EngineError(f"the engine runs {type(scheduler).__name__}, not sloserve's scheduler")
    return scheduler


def _status(self: Any) -> dict[str, Any]:
    return {"rank": getattr(self, "engine_index", 0), **scheduler_of(self).status()}


def _set_policies(self: Any, change: str, policy: str | None, shadow_policy: str | None) -> str | None:
    """Changes this rank's policies; returns why they cannot be changed, where that is the fault of the texts."""
    scheduler = scheduler_of(self)
    before = scheduler.status()
    try:
        scheduler.set_policies(policy, shadow_policy, allow_files=False)
    except ConfigError as error:
        return str(error)
    setattr(self, _CHANGED, (change, before["policy"], before["shadow_policy"]))
    return None


def _undo_policies(self: Any, change: str) -> None:
    """Goes back to the policies before ``change``, if this rank made it and none after it."""
    made, policy, shadow_policy = getattr(self, _CHANGED, (None, None, None))
    if made == change:
        scheduler_of(self).set_policies(policy, shadow_policy or "")
        delattr(self, _CHANGED)


# For the API process.


async def status(async_llm: Any) -> list[dict[str, Any]]:
    """What each engine rank's scheduler is doing, in plain values. Raises: EngineError."""
    answers = await call_all(async_llm, "sloserve_status")
    failed = failures(answers)
    if failed:
        raise EngineError(f"no status from the engine: {failed}")
    return answers


async def answered(async_llm: Any) -> None:
    """Returns once every engine rank has answered, whatever; it may be never."""
    await call_all(async_llm, "sloserve_status", limit_s=None)


async def set_policies(async_llm: Any, policy: str | None = None, shadow_policy: str | None = None) -> None:
    """Makes every rank follow the policy and score the shadow policy from its next step on, or changes nothing.

    policy, shadow_policy: as for ``--policy``, without options that name files; ``None`` leaves it as it is, an empty
    shadow policy turns shadow mode off.
    Raises: ConfigError, and nothing has changed; EngineError when a rank failed: it says which, and whether the others
    went back to what they followed before.
    """
    for text in (policy, shadow_policy or None):
        if text is not None:
            await asyncio.to_thread(_check, text)  # loading a policy reads files, if only those of its module
    change = uuid.uuid4().hex
    answers = await call_all(async_llm, "sloserve_set_policies", change, policy, shadow_policy)
    if not any(answers):
        return
    undone = failures(await call_all(async_llm, "sloserve_undo_policies", change))
    refused = next((answer for answer in answers if isinstance(answer, str)), None)
    if refused is not None and not failures(answers) and not undone:
        raise ConfigError(refused)
    raise EngineError(
        f"the policies were not changed: {failures(answers) or refused}; "
        + (f"not every rank went back to those before: {undone}" if undone else "all ranks follow those before")
    )


def _check(text: str) -> None:
    name, options = parse_policy(text)
    make_policy(name, options, allow_files=False)


async def call_all(async_llm: Any, method: str, *args: Any, limit_s: float | None = ANSWER_LIMIT_S) -> list[Any]:
    """What each rank answers, or the exception that it ended in. limit_s: what takes longer failed."""
    from sloserve.vllm_plugin.engine import compat

    return await compat.call_every_engine(async_llm.engine_core, method, *args, limit_s=limit_s)


def failures(answers: list[Any]) -> str:
    """Which ranks failed, and how; empty if none did."""
    return "; ".join(
        f"rank {rank}: {reason(answer)}" for rank, answer in enumerate(answers) if isinstance(answer, BaseException)
    )


def reason(error: BaseException) -> str:
    """What an error says, or its name where it says nothing."""
    return str(error) or type(error).__name__


async def go_on(resuming: Awaitable[Any], failure: str) -> None:
    """Ends the pause that a change began which failed, so that no pause stays by accident.

    resuming: the call that ends it. failure: of the change, where the message begins.
    Raises: EngineError where the pause stays.
    """
    try:
        await asyncio.wait_for(resuming, ANSWER_LIMIT_S)
    except Exception as error:
        raise EngineError(
            f"{failure}, and the engine stays paused: {reason(error)}; POST {UNPARK} has it go on"
        ) from error
