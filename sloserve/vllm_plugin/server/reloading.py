"""One model's weights in place of another's, in an engine that runs: for models that differ in their weights alone.

vLLM reads new weights into the parameters that it has, and asks nothing: a path that cannot be read leaves an engine
that dies at its next step, KV of the old weights stays in its caches, and answers name the old model. Here the path is
opened first, caches are emptied, and the server takes the new model's name.
"""

import asyncio
from pathlib import Path
from typing import Any

from sloserve.core.errors import ConfigError, EngineError, shown


async def reload(async_llm: Any, models: Any, weights_path: str, name: str) -> None:
    """Requests that run end before; those that come meanwhile wait, and are served with the new weights.

    models: vLLM's ``OpenAIServingModels``, which holds the names that the server answers to.
    Raises: ConfigError for a path that has no weights, and nothing has changed; EngineError where the engine did not
    read them: what it holds is not known, and it is to be killed.
    """
    await asyncio.to_thread(check_weights, weights_path)
    await async_llm.pause_generation(mode="wait", clear_cache=True)
    try:
        await async_llm.collective_rpc("reload_weights", kwargs={"weights_path": weights_path})
        await async_llm.reset_prefix_cache()
        await async_llm.reset_mm_cache()
    except Exception as error:
        raise EngineError(
            f"the weights in {weights_path} were not read, and what the engine holds is not known: "
            f"{str(error) or type(error).__name__}; kill it"
        ) from error
    known = models.base_model_paths  # one list, which others hold too
    known[:] = [type(known[0])(name=name, model_path=weights_path)]
    await async_llm.resume_generation()


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
