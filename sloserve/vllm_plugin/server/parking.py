"""Parking: before an engine sleeps, the KV of its requests goes to the swap space; when it wakes, they continue.

An engine that vLLM puts to sleep with its requests kept (``mode=keep``) computes each of them again when it wakes, all
tokens so far. A parked one copies their KV back. Requests for which there is no room are computed again.

:func:`install` gives vLLM's EngineCore what is called here, and has it tell the scheduler when weights change: KV of
other weights never comes back, wherever it is kept.
"""

import functools
from typing import Any

from sloserve.core.errors import ConfigError, EngineError
from sloserve.vllm_plugin.server import engine_control, reloading

_INSTALLED = "sloserve_park"

LEVELS = (0, 1)
"""Levels of sleep, as in vLLM: with 0 only requests and their KV leave the device, with 1 weights do too.

With 2 the weights would be lost, and KV of lost weights is of no use.
"""

_WEIGHTS = frozenset(
    {
        "reload_weights",
        "reset_weights",
        "start_weight_update",
        "start_draft_weight_update",
        "update_weights",
        "finish_weight_update",
    }
)
"""Methods of the workers after which KV that was computed before belongs to another model."""


def install() -> None:
    """Extend vLLM's engine in this process; a second call changes nothing."""
    from vllm.v1.engine.core import EngineCore

    if not hasattr(EngineCore, _INSTALLED):
        EngineCore.sloserve_park = _park
        EngineCore.collective_rpc = _reporting_weights(EngineCore.collective_rpc)


def _reporting_weights(stock: Any) -> Any:
    @functools.wraps(stock)
    def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(self, method, *args, **kwargs)
        finally:
            # This runs whether the call succeeded or not, and also for a call that is not known here to an engine that
            # is parked.
            scheduler = self.scheduler
            if hasattr(scheduler, "weights_changed") and (method in _WEIGHTS or scheduler.parked):
                scheduler.weights_changed()

    return collective_rpc


def _park(self: Any, level: int) -> dict[str, int]:
    parked: dict[str, int] = engine_control.scheduler_of(self).park(keep_over_reset=level > 0)._asdict()
    return parked


# The API process uses the functions below.


async def park(async_llm: Any, level: int = 1) -> list[dict[str, int]]:
    """Swap all running requests out on every rank, then put the engine to sleep; clients' streams stay open.

    Returns: by rank, how many ``requests`` were parked, and of how many the KV was ``kept``.

    Raises: ConfigError for a level that is not in :data:`LEVELS`; EngineNotReady after a reload that failed;
    EngineError where a rank fails, and all go on.
    """
    if level not in LEVELS:
        raise ConfigError(
            f"level: {level} is not one of {', '.join(map(str, LEVELS))}; level 2 drops the weights, so requests could "
            "not go on"
        )
    reloading.check_weights_known(async_llm)
    try:
        parked = await engine_control.call_all(async_llm, "sloserve_park", level)
        if failed := engine_control.failures(parked):
            raise EngineError(failed)
        await async_llm.sleep(level, mode="keep")
    except BaseException as error:  # whatever it is: requests wait
        failure = f"the engine was not parked: {engine_control.reason(error)}"
        await engine_control.go_on(async_llm.wake_up(), failure)
        if isinstance(error, Exception):
            raise EngineError(f"{failure}; its requests go on") from error
        raise
    return parked


async def unpark(async_llm: Any) -> None:
    """Wake every rank; its requests go on. An engine that is merely asleep or paused goes on, too.

    Raises: EngineNotReady after a reload that failed, EngineError.
    """
    reloading.check_weights_known(async_llm)
    try:
        await async_llm.wake_up()
    except Exception as error:
        raise EngineError(f"the engine does not wake: {engine_control.reason(error)}") from error
