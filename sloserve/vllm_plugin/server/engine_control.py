"""Ask the engines from the API process what their schedulers are doing, and have them follow another policy.

All ranks follow a change or none does. Texts of policies come over the network here: their options name no files.

:func:`install` gives vLLM's EngineCore methods that its client can call as it calls its own (``call_utility``); they
run in the engine's loop, between two steps. It also makes an engine that runs a loop of its own publish its figures:
the virtual engine, tests, and an engine inside its caller's process do not, and make no page.
"""

import asyncio
import functools
import uuid
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError, EngineError
from sloserve.core.json_log import say
from sloserve.engine.policy_change import MOST_BY_CHARS, PolicyChanged
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.scheduler.settings import KEY, plugin_settings

_INSTALLED = "sloserve_status"
_CHANGED = "sloserve_changed"
"""Attribute in which an engine keeps the last change: the id of the change, and a function that takes it back."""

ANSWER_LIMIT_S = 60.0
"""Seconds for a response: an engine responds between two steps; a first one that compiles takes tens of seconds."""
UNPARK: Final = "/sloserve/unpark"
"""The route that resumes a paused engine."""


def install() -> None:
    """Extend vLLM's engine in this process; a second call changes nothing."""
    from vllm.v1.engine import core

    if hasattr(core.EngineCore, _INSTALLED):
        return
    core.EngineCore.sloserve_status = _status
    core.EngineCore.sloserve_set_policies = _set_policies
    core.EngineCore.sloserve_set_settings = _set_settings
    core.EngineCore.sloserve_undo = _undo
    core.EngineCore.sloserve_set_elsewhere = _set_elsewhere
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


def _set_policies(
    self: Any,
    change: str,
    policy: str | None,
    shadow_policy: str | None,
    by: str = "",
    at_s: float = 0.0,
    undoes: str | None = None,
) -> str | None:
    """Change this rank's policies; return why they cannot be changed, if the request is at fault.

    Args:
        self: The engine.
        change: Id of the change.
        policy: Policy to follow; ``None`` leaves it as it is.
        shadow_policy: Policy to score; ``None`` leaves it as it is, and an empty one turns shadow mode off.
        by: Origin of the request.
        at_s: Time of the change, in epoch seconds.
        undoes: Id of the change of the policy that is undone, in place of ``policy``; it must be the last one.
    """
    scheduler = scheduler_of(self)
    before, last = scheduler.status(), scheduler.policy_change
    if undoes is not None:
        if last is None or last.id != undoes:
            return f"undo: {undoes!r} is not the last change of the policy; GET /sloserve/status shows the last one"
        policy = last.before
    try:
        # A policy that the engine has followed before may name a file: its operator gave it.
        scheduler.set_policies(policy, shadow_policy, allow_files=undoes is not None)
    except ConfigError as error:
        return str(error)
    if policy is not None:
        scheduler.note_change(PolicyChanged(change, at_s, by, before["policy"]))
    back = functools.partial(_restore_policies, scheduler, before, last)
    setattr(self, _CHANGED, (change, back))
    return None


def _restore_policies(scheduler: Any, before: Mapping[str, Any], last: PolicyChanged | None) -> None:
    scheduler.set_policies(before["policy"], before["shadow_policy"] or "")
    scheduler.note_change(last)


def _set_settings(self: Any, change: str, section: Mapping[str, Any]) -> str | None:
    """Change this rank's settings; return why they cannot be changed, if the settings are at fault."""
    scheduler = scheduler_of(self)
    before = scheduler.settings
    try:
        scheduler.set_settings(plugin_settings({KEY: section}))
    except ConfigError as error:
        return str(error)
    except Exception:  # a part of the scheduler may follow the new ones, and the response will be that none does
        scheduler.set_settings(before)
        raise
    setattr(self, _CHANGED, (change, functools.partial(scheduler.set_settings, before)))
    return None


def _undo(self: Any, change: str) -> None:
    """Take ``change`` back, if this rank made it and no change after it."""
    made, back = getattr(self, _CHANGED, (None, None))
    if made == change and back is not None:
        back()
        delattr(self, _CHANGED)


def _set_elsewhere(
    self: Any, in_instances: Mapping[str, float], in_ranks: list[tuple[int, Mapping[str, float]]]
) -> None:
    """Set what tenants had in other instances, to which the other ranks of this one are added."""
    elsewhere = Counter(in_instances)
    for rank, service_s in in_ranks:
        if rank != getattr(self, "engine_index", 0):
            elsewhere.update(service_s)
    scheduler_of(self).set_elsewhere(elsewhere)


# The API process uses the functions below.


async def status(async_llm: Any) -> list[dict[str, Any]]:
    """Return what each engine rank's scheduler is doing, in plain values. Raises: EngineError."""
    answers = await call_all(async_llm, "sloserve_status")
    failed = failures(answers)
    if failed:
        raise EngineError(f"no status from the engine: {failed}")
    return answers


async def await_responses(async_llm: Any) -> None:
    """Return once every engine rank has responded, with whatever result; that may be never."""
    await call_all(async_llm, "sloserve_status", limit_s=None)


async def set_policies(
    async_llm: Any,
    policy: str | None = None,
    shadow_policy: str | None = None,
    *,
    by: str = "",
    undoes: str | None = None,
) -> None:
    """Make every rank follow the policy and score the shadow policy from its next step on, or change nothing.

    Args:
        async_llm: The engine client.
        policy: Policy to follow, as for ``--policy``, without options that name files; ``None`` leaves it as it is.
        shadow_policy: Policy to score, likewise; an empty one turns shadow mode off.
        by: Origin of the request, for the record.
        undoes: Id of the last change of the policy, which is undone; ``policy`` is ``None`` then.

    Raises: ConfigError, and nothing has changed; EngineError when a rank failed: it says which, and whether the others
    went back to what they followed before.
    """
    for text in (policy, shadow_policy or None):
        if text is not None:
            await asyncio.to_thread(_check, text)  # loading a policy reads files, if only the files of its module
    by, at_s = by[:MOST_BY_CHARS], round(SystemClock().now_s(), 3)
    await _change_all(async_llm, "policies", "sloserve_set_policies", policy, shadow_policy, by, at_s, undoes)
    if policy is not None or undoes is not None:
        say(f"policy changed by {by!r}: {policy if undoes is None else f'{undoes} was undone'}", by=by)


async def set_settings(async_llm: Any, section: dict[str, Any]) -> str:
    """Make every rank follow other settings from its next step on, or change nothing.

    Args:
        async_llm: The engine client.
        section: The settings that users wrote.

    Returns: the id of the change, with which :func:`undo` takes it back.

    Raises: ConfigError, and nothing has changed; EngineError when a rank failed, as :func:`set_policies` does.
    """
    return await _change_all(async_llm, "settings", "sloserve_set_settings", section)


async def undo(async_llm: Any, change: str) -> str:
    """Take a change back on every rank; return which ranks failed to, and how, empty if none did."""
    return failures(await call_all(async_llm, "sloserve_undo", change))


async def _change_all(async_llm: Any, what: str, method: str, *args: Any) -> str:
    """Call a method of EngineCore that changes something on every rank, or on none; return the id of the change.

    Args:
        async_llm: The engine client.
        what: What is changed, for messages.
        method: Name of the method, which is called with the id and ``args``.
        *args: Further arguments of the method.

    Raises: ConfigError if the method refuses the arguments, EngineError if a rank failed.
    """
    change = uuid.uuid4().hex
    answers = await call_all(async_llm, method, change, *args)
    if not any(answers):
        return change
    undone = await undo(async_llm, change)
    refused = next((answer for answer in answers if isinstance(answer, str)), None)
    if refused is not None and not failures(answers) and not undone:
        raise ConfigError(refused)
    raise EngineError(
        f"the {what} were not changed: {failures(answers) or refused}; "
        + (
            f"not every rank went back to its earlier {what}: {undone}"
            if undone
            else f"all ranks follow their earlier {what}"
        )
    )


async def set_elsewhere(async_llm: Any, service_s: Mapping[str, float]) -> list[dict[str, Any]]:
    """Make every rank count what tenants had in other instances of a fleet, and in the other ranks.

    Args:
        async_llm: The engine client.
        service_s: Recent service in the other instances by tenant, in seconds; it replaces what was set before.

    Returns: the status of each rank before. Raises: ConfigError if the engine has no shares; EngineError if a rank
    failed, and then some ranks may not have the figures.
    """
    ranks = await status(async_llm)
    if any(rank["tenant_service_s"] is None for rank in ranks):
        raise ConfigError("the engine's settings have no tenant_shares, so it counts no service of tenants")
    in_ranks = [(rank["rank"], rank["tenant_service_s"]) for rank in ranks] if len(ranks) > 1 else []
    failed = failures(await call_all(async_llm, "sloserve_set_elsewhere", dict(service_s), in_ranks))
    if failed:
        raise EngineError(f"the service of tenants elsewhere was not set everywhere: {failed}")
    return ranks


def _check(text: str) -> None:
    name, options = parse_policy(text)
    make_policy(name, options, allow_files=False)


async def call_all(async_llm: Any, method: str, *args: Any, limit_s: float | None = ANSWER_LIMIT_S) -> list[Any]:
    """Return each rank's response, or the exception that its call ended in.

    Args:
        async_llm: The engine client.
        method: Name of the method of EngineCore to call.
        *args: Arguments of the method.
        limit_s: Seconds after which a call has failed; ``None`` for no limit.
    """
    from sloserve.vllm_plugin.engine import compat

    return await compat.call_every_engine(async_llm.engine_core, method, *args, limit_s=limit_s)


def failures(answers: list[Any]) -> str:
    """Return which ranks failed, and how; empty if none did."""
    return "; ".join(
        f"rank {rank}: {reason(answer)}" for rank, answer in enumerate(answers) if isinstance(answer, BaseException)
    )


def reason(error: BaseException) -> str:
    """Return the text of an error, or its name if it has no text."""
    return str(error) or type(error).__name__


async def go_on(resuming: Awaitable[Any], failure: str) -> None:
    """End the pause that a failed change began, so that no pause stays by accident.

    Args:
        resuming: The call that ends the pause.
        failure: What failed, for the beginning of the message.

    Raises: EngineError if the pause stays.
    """
    try:
        await asyncio.wait_for(resuming, ANSWER_LIMIT_S)
    except Exception as error:
        raise EngineError(
            f"{failure}, and the engine stays paused: {reason(error)}; POST {UNPARK} resumes it"
        ) from error
