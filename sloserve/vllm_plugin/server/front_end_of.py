"""What the server asks of the front end of an engine client, of which it is not known whether it has one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sloserve.vllm_plugin.server import engine_control
from sloserve.vllm_plugin.server.front_end import FrontEnd
from sloserve.vllm_plugin.server.live_settings import LiveSettings

ATTRIBUTE = "sloserve_front_end"
"""Attribute under which an engine client, vLLM's ``AsyncLLM``, has its front end."""


def front_end_of(engine: Any) -> FrontEnd | None:
    """Return the front end of an engine client; ``None`` if the engine runs another scheduler than ours."""
    found: FrontEnd | None = getattr(engine, ATTRIBUTE, None)
    return found


def controlling(engine: Any) -> AbstractContextManager[None]:
    """Exclude the time of a call that may keep the core busy from its silence; see :mod:`.core_check`."""
    front_end = front_end_of(engine)
    control: AbstractContextManager[None] = nullcontext() if front_end is None else front_end.core_check.controlling()
    return control


def live_settings_of(engine: Any) -> LiveSettings | None:
    """Return the settings that the server of this engine client follows; ``None`` without a scheduler of ours."""
    front_end = front_end_of(engine)
    return None if front_end is None else front_end.live


def api_processes(engine: Any) -> int:
    """Return how many API processes the server of this engine client has."""
    front_end = front_end_of(engine)
    return 1 if front_end is None else int(front_end.processes)


def check_open(engine: Any) -> None:
    """Raise ShuttingDown if the server of this engine client takes no more work, since it is stopping."""
    front_end = front_end_of(engine)
    if front_end is not None:
        front_end.drain.check_open()


def has_failed(engine: Any) -> bool:
    """Return whether the core behind this engine client has died and the server was not asked to stop."""
    front_end = front_end_of(engine)
    return front_end is not None and engine.errored and not front_end.drain.begun


async def core_hangs(engine: Any) -> bool:
    """Return whether the core behind this engine client has not responded for too long; see :mod:`.core_check`."""
    front_end = front_end_of(engine)
    return front_end is not None and await front_end.core_check.hangs(lambda: engine_control.await_responses(engine))


def count_stopped(engine: Any) -> None:
    """Count a request that is refused because the engine client's server is stopping, before its SLO is read."""
    front_end = front_end_of(engine)
    if front_end is not None:
        front_end.count_stopped()


def count_unread(engine: Any, reason: str, tenant: str | None, slo_class: str | None) -> None:
    """Count a request that is refused before its body is read.

    Args:
        engine: The engine client.
        reason: One of :data:`~sloserve.engine.recording.events.REFUSALS`.
        tenant: Tenant of the request; ``None`` for the tenant that the present request states.
        slo_class: Class that its headers name; ``None`` if they name none.
    """
    front_end = front_end_of(engine)
    if front_end is not None:
        front_end.count_unread(reason, tenant, slo_class)


def on_stop(engine: Any, call: Callable[[], None]) -> None:
    """Have ``call`` called in the event loop once the server of this engine client takes no more work."""
    front_end = front_end_of(engine)
    if front_end is not None:
        front_end.drain.on_begin(call)
