"""One model's weights in place of another's, in an engine that runs: for models that differ in their weights alone.

vLLM reads new weights into the parameters that it has, and asks nothing: a path that cannot be read leaves an engine
that dies at its next step, weights that are read while the engine sleeps are gone when it wakes, a request that waits
in the middle of its reply goes on with other weights, KV of the old weights stays in its caches, and answers name the
old model. Here the path is opened first, caches are emptied, and the server takes the new model's name.

**No reply has tokens of two models.** Weights change only in an engine that is awake, in which no reply has begun that
is still to go on: parked, preempted, or a session that waits for its next input. Each rank makes sure of it in the same
call that reads them (:func:`_reload`), between two of its steps, whatever other calls come.

:func:`install` gives vLLM's EngineCore what is called here.
"""

import asyncio
from pathlib import Path
from typing import Any

from sloserve.core.errors import ConfigError, EngineError, EngineNotReady, shown
from sloserve.vllm_plugin.server import engine_control

_INSTALLED = "sloserve_reload"


def install() -> None:
    """Extends vLLM's engine in this process; a second call changes nothing."""
    from vllm.v1.engine.core import EngineCore

    if not hasattr(EngineCore, _INSTALLED):
        EngineCore.sloserve_reload_refused = _refused
        EngineCore.sloserve_reload = _reload


# Methods of EngineCore.


def _refused(self: Any, paused: bool) -> str | None:
    """Why this rank may not change its weights, and what to do. paused: whether it is after our pause, or before it."""
    from vllm.v1.core.sched.interface import PauseState

    from sloserve.vllm_plugin.engine import compat

    scheduler = engine_control.scheduler_of(self)
    state = PauseState.PAUSED_NEW if paused else PauseState.UNPAUSED
    if self.model_executor.is_sleeping or scheduler.pause_state != state:
        return "the engine is parked, asleep or paused; POST /sloserve/unpark first, which has its requests go on"
    # What runs ends before the pause has come; but for a session, which then waits for its next input.
    ending = set() if paused else {request.request_id for request in scheduler.running}
    begun = sum(
        bool(request.resumable or (request.num_output_tokens and request.request_id not in ending))
        for request in compat.live_requests(scheduler)
    )
    if begun:
        return (
            f"{begun} replies have begun and wait, preempted or between two inputs of a session, and would go on with "
            "other weights; reload when fewer requests run"
        )
    return None


def _reload(self: Any, weights_path: str, version: str) -> None:
    """Reads the weights, in the pause that was made for it. version: what vLLM calls them from then on.

    Raises: EngineNotReady where :func:`_refused` has a reason, and nothing has changed.
    """
    reason = _refused(self, paused=True)
    if reason is not None:
        raise EngineNotReady(reason)
    self.collective_rpc("reload_weights", kwargs={"weights_path": weights_path})
    self.reset_prefix_cache()
    self.set_weight_version(version)


# For the API process.


async def reload(async_llm: Any, models: Any, weights_path: str, name: str, api_processes: int = 1) -> None:
    """Requests that run end before; those that come meanwhile wait, and are served with the new weights.

    models: vLLM's ``OpenAIServingModels``, which holds the names that the server answers to. api_processes: of the
    server; each holds names of its own.
    Raises: ConfigError for a path that has no weights or a server of several processes, EngineNotReady where a reply
    would be of two models, and nothing has changed; EngineError where the engine did not read them: what it holds is
    not known, and it is to be killed.
    """
    if api_processes > 1:
        raise ConfigError(
            f"the server has {api_processes} API processes, and only one would take the new name; start it with "
            "--api-server-count 1 to reload"
        )
    await asyncio.to_thread(check_weights, weights_path)
    await _check(async_llm, paused=False)
    try:
        await _pause(async_llm)
        await _check(async_llm, paused=True)
    except BaseException:  # whatever it is: no weights were read yet, and requests wait
        await async_llm.resume_generation()
        raise
    # One of some GB takes minutes to read.
    failed = engine_control.failures(
        await engine_control.call_all(async_llm, "sloserve_reload", weights_path, name, limit_s=None)
    )
    if failed:
        raise EngineError(
            f"the weights in {weights_path} were not read, and what the engine holds is not known: {failed}; kill it"
        )
    # Of requests that came since the pause; the API process' cache says what is in the engines', so it empties both.
    await async_llm.reset_mm_cache()
    known = models.base_model_paths  # one list, which others hold too
    known[:] = [type(known[0])(name=name, model_path=weights_path)]
    await async_llm.resume_generation()


async def _pause(async_llm: Any) -> None:
    """Returns once no request runs. Raises: EngineError where the engine cannot be paused; it may be paused in part."""
    try:
        await async_llm.pause_generation(mode="wait", clear_cache=True)
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise EngineError(f"the weights were not read: the engine cannot be paused: {reason}; try again") from error


async def _check(async_llm: Any, paused: bool) -> None:
    """Raises: EngineNotReady where a rank may not change its weights; EngineError where one does not answer."""
    answers = await engine_control.call_all(async_llm, "sloserve_reload_refused", paused)
    failed = engine_control.failures(answers)
    if failed:
        raise EngineError(f"the weights were not read: {failed}")
    reason = next(filter(None, answers), None)
    if reason is not None:
        raise EngineNotReady(reason)


def check_weights(path: str) -> None:
    """Raises: ConfigError where there are no files of weights, or they cannot be opened."""
    try:
        files = sorted(Path(path).glob("*.safetensors"))
        for file in files:
            file.open("rb").close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"weights_path: {shown(path)} cannot be read: {error}") from error
    if not files:
        raise ConfigError(f"weights_path: there is no folder with *.safetensors at {shown(path)}")
