"""Replace a model's weights by another model's in a running engine, for models that differ only in their weights.

vLLM reads new weights into the parameters that it has, and checks nothing: a path that cannot be read leaves an engine
that dies at its next step, weights that are read while the engine sleeps are gone when it wakes, a request that waits
in the middle of its output goes on with other weights, KV of the old weights stays in its caches, and responses name
the old model. Here the path is opened first, caches are emptied, and the server takes the new model's name.

**No output has tokens of two models.** Weights change only in an engine that is awake, in which no output has begun
that is still to go on: parked, preempted, or a session that waits for its next input. Each rank makes sure of it in the
same call that reads them (:func:`_reload`), between two of its steps, whatever other calls come.

**All ranks serve with the same weights.** From before the first reads until after the last has, the engine is paused,
and no call through its client ends the pause or puts it to sleep, ours or vLLM's own. After a reload has failed on any
rank, only a reload that succeeds on every rank ends the pause.

:func:`install` gives vLLM's EngineCore what is called here, and guards what ends a pause.
"""

import asyncio
import functools
from pathlib import Path
from typing import Any

from sloserve.core.errors import ConfigError, EngineError, EngineNotReady, shown
from sloserve.vllm_plugin.server import engine_control

_INSTALLED = "sloserve_reload"
_UNSURE = "sloserve_weights_unsure"
"""Attribute in which an engine client keeps why its ranks may hold different weights; ``None`` if they do not."""
_READING = "other weights are to be read; wait until they have been"
_GUARDED = ("sleep", "wake_up", "resume_generation")
"""Methods of ``AsyncLLM`` that end a pause, or need another call that does."""


def install() -> None:
    """Extend vLLM's engine and its client in this process; a second call changes nothing."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core import EngineCore

    if not hasattr(EngineCore, _INSTALLED):
        EngineCore.sloserve_reload_refused = _refused
        EngineCore.sloserve_reload = _reload
        for name in _GUARDED:
            setattr(AsyncLLM, name, _guarded(getattr(AsyncLLM, name)))


def _guarded(stock: Any) -> Any:
    @functools.wraps(stock)
    async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_weights_known(self)
        return await stock(self, *args, **kwargs)

    return guarded


# Methods of EngineCore.


def _refused(self: Any, paused: bool) -> str | None:
    """Return why this rank may not change its weights, and what to do; ``None`` if it may.

    Args:
        self: The engine core of the rank.
        paused: Whether our pause has begun.
    """
    from vllm.v1.core.sched.interface import PauseState

    from sloserve.vllm_plugin.engine import compat

    scheduler = engine_control.scheduler_of(self)
    state = PauseState.PAUSED_NEW if paused else PauseState.UNPAUSED
    if self.model_executor.is_sleeping or scheduler.pause_state != state:
        return "the engine is parked, asleep or paused; POST /sloserve/unpark first, which resumes its requests"
    # What runs ends before the pause has come; but for a session, which then waits for its next input.
    ending = set() if paused else {request.request_id for request in scheduler.running}
    begun = sum(
        bool(request.resumable or (request.num_output_tokens and request.request_id not in ending))
        for request in compat.live_requests(scheduler)
    )
    if begun:
        return (
            f"{begun} outputs have begun and wait, preempted or between two inputs of a session, and would go on with "
            "other weights; reload when fewer requests run"
        )
    return None


def _reload(self: Any, weights_path: str, version: str) -> str | None:
    """Read the weights, in the pause that was made for it.

    Args:
        self: The engine core of the rank.
        weights_path: Folder of the weights.
        version: Name by which vLLM knows the weights afterwards.

    Returns: why they may not change, and nothing has; ``None`` once they are read.
    """
    refused = _refused(self, paused=True)
    if refused is None:
        self.collective_rpc("reload_weights", kwargs={"weights_path": weights_path})
        self.reset_prefix_cache()
        self.set_weight_version(version)
    return refused


# The API process uses the functions below.


def failed_reload(async_llm: Any) -> str | None:
    """Return how the last reload failed, if none has succeeded since, and what to do; ``None`` without a failure."""
    unsure: str | None = getattr(async_llm, _UNSURE, None)
    return None if unsure == _READING else unsure


def check_weights_known(async_llm: Any) -> None:
    """Raise EngineNotReady while the ranks may hold different weights."""
    unsure = getattr(async_llm, _UNSURE, None)
    if unsure is not None:
        raise EngineNotReady(unsure)


async def reload(async_llm: Any, models: Any, weights_path: str, name: str, api_processes: int = 1) -> None:
    """Load other weights; running requests end first, later ones wait and are served with the new weights.

    Args:
        async_llm: The engine client.
        models: vLLM's ``OpenAIServingModels``, which holds the names under which the server serves its model.
        weights_path: Folder of the weights.
        name: The new name of the model.
        api_processes: Number of API processes of the server; each holds names of its own.

    Raises: ConfigError for a path that has no weights or a server of several processes, EngineNotReady where an output
    would have tokens of two models, and nothing has changed; EngineError where a rank did not read them: nothing is
    served then until another reload has succeeded.
    """
    if api_processes > 1:
        raise ConfigError(
            f"the server has {api_processes} API processes, and only one would take the new name; start it with "
            "--api-server-count 1 to reload"
        )
    await asyncio.to_thread(check_weights, weights_path)
    known = models.base_model_paths  # one list, which others hold too
    before = failed_reload(async_llm)
    if before is None:  # else it is paused, since then
        await _check(async_llm, paused=False)
    left = before
    setattr(async_llm, _UNSURE, _READING)
    try:
        await _pause(async_llm)
        await _check(async_llm, paused=True)
        left = _unsure(weights_path, "broke off")
        try:
            failed = await _read(async_llm, weights_path, name)
        except EngineNotReady:
            left = before
            raise
        left = _unsure(weights_path, f"failed: {failed}") if failed else None
        if left is not None:
            raise EngineError(left)
        known[:] = [type(known[0])(name=name, model_path=weights_path)]
    finally:  # also after a failure: requests wait
        setattr(async_llm, _UNSURE, left)
        if left is None:
            over = f"the reload of {shown(weights_path)} is over"
            await engine_control.go_on(async_llm.resume_generation(), over)


async def _read(async_llm: Any, weights_path: str, name: str) -> str:
    """Have every rank read the weights; return which did not, and why. Raises: EngineNotReady where none has begun."""
    # Weights of some GB take minutes to read.
    answers = await engine_control.call_all(async_llm, "sloserve_reload", weights_path, name, limit_s=None)
    answers = [EngineNotReady(one) if isinstance(one, str) else one for one in answers]
    if all(isinstance(one, EngineNotReady) for one in answers):
        raise answers[0]
    failed = engine_control.failures(answers)
    if not failed:
        try:
            # Of requests that came since the pause; this process' cache says what is in the engines', so both.
            await async_llm.reset_mm_cache()
        except Exception as error:
            failed = f"the multimodal caches were not emptied: {engine_control.reason(error)}"
    return failed


def _unsure(weights_path: str, what: str) -> str:
    return (
        f"the reload of {shown(weights_path)} {what}; ranks may hold different weights, so nothing is served until one "
        "succeeds: POST /sloserve/reload again, or kill the engine"
    )


async def _pause(async_llm: Any) -> None:
    """Return once no request runs; requests that come meanwhile wait in the engine.

    ``AsyncLLM.pause_generation`` has the engine refuse them since vLLM 0.33 (503). The engine's own call, which it was
    made of before and which ``sleep`` still uses, holds them in every version. Caches of multimodal inputs are emptied
    in the front end first, as ``pause_generation`` does.

    Raises: EngineError where the engine cannot be paused; it may be paused in part.
    """
    try:
        await async_llm.renderer.clear_mm_cache_async()
        await async_llm.engine_core.pause_scheduler_async(mode="wait", clear_cache=True)
    except Exception as error:
        reason = engine_control.reason(error)
        raise EngineError(f"the weights were not read: the engine cannot be paused: {reason}; try again") from error


async def _check(async_llm: Any, paused: bool) -> None:
    """Raise EngineNotReady if a rank may not change its weights, and EngineError if one does not respond."""
    answers = await engine_control.call_all(async_llm, "sloserve_reload_refused", paused)
    failed = engine_control.failures(answers)
    if failed:
        raise EngineError(f"the weights were not read: {failed}")
    reason = next(filter(None, answers), None)
    if reason is not None:
        raise EngineNotReady(reason)


def check_weights(path: str) -> None:
    """Raise ConfigError if there are no files of weights, or they cannot be opened."""
    try:
        files = sorted(Path(path).glob("*.safetensors"))
        for file in files:
            file.open("rb").close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"weights_path: {shown(path)} cannot be read: {error}") from error
    if not files:
        raise ConfigError(f"weights_path: there is no folder with *.safetensors at {shown(path)}")
