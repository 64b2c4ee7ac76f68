"""Repair seeded requests on vLLM's CPU runner, where prompts are computed in several steps.

A step that ends inside a prompt (or, after a preemption, inside a prompt and its output) samples a token that vLLM
throws away. vLLM then moves the request's generator back by an offset. Generators of CUDA have one; generators of a CPU
raise "CPU Generator does not use offset", and the engine ends with all its requests.

Here such a token is drawn from the default generator instead, as for a request without a seed. The invariant: a seeded
generator moves only for tokens that the output keeps. So nothing has to be moved back, and a seeded output is the same
wherever steps cut its prompt.

The worker processes have no scheduler, so each is mended by the ``vllm.general_plugins`` entry point. It leaves alone:
engines without our scheduler, other devices, and vLLM's second model runner, which has no generators.
"""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.vllm_plugin.versions import TESTED_VLLM

logger = logging.getLogger(__name__)

_EXPECTED = {
    "_bookkeeping_sync": {"discard_request_mask", "input_batch", "generators", "set_offset"},
    "sample_tokens": {"_sample", "_bookkeeping_sync"},
    "_sample": {"input_batch", "sampling_metadata"},
}
"""Names to which the runner's methods that draw and rewind must refer, so that the mend works."""


def install(ours: Callable[[Any], bool]) -> None:
    """Mend each CPU runner that this process makes after this call.

    Args:
        ours: Returns whether the engine of a vLLM configuration runs our scheduler.
    """
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    stock = WorkerWrapperBase.init_device

    @functools.wraps(stock)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        runner = getattr(self.worker, "model_runner", None)
        if runner is not None and runner.device.type == "cpu" and ours(self.vllm_config):
            mend(runner)

    WorkerWrapperBase.init_device = init_device


def mend(runner: Any) -> None:
    """Have ``runner``, a model runner on a CPU, draw no discarded token from the generator of a request.

    Raises: ConfigError where its code is neither what this mends nor free of the fault.
    """
    if not _rewinds(runner):
        return
    missing = _missing(runner)
    if missing:
        import vllm

        raise ConfigError(
            f"vLLM {vllm.__version__} rewinds generators on a CPU, and its model runner lacks {', '.join(missing)}, "
            "which sloserve needs to keep seeded requests from ending the engine; "
            f"use one of {', '.join(TESTED_VLLM)}"
        )
    stock = runner.sample_tokens

    @functools.wraps(stock)
    def sample_tokens(*args: Any, **kwargs: Any) -> Any:
        generators = runner.input_batch.generators  # by row of the batch; the sampler reads this same dictionary
        if not generators:
            return stock(*args, **kwargs)
        discarded = runner.discard_request_mask.np
        spared = {row: generators.pop(row) for row in list(generators) if discarded[row]}
        try:
            return stock(*args, **kwargs)
        finally:
            generators.update(spared)  # sampling moves no rows

    runner.sample_tokens = sample_tokens


def _rewinds(runner: Any) -> bool:
    """Return whether a method of the runner moves a generator by its offset."""
    methods = inspect.getmembers(type(runner), inspect.isfunction)
    return any("set_offset" in inspect.unwrap(method).__code__.co_names for _, method in methods)


def _missing(runner: Any) -> list[str]:
    """Return the names that the mend relies on and does not find."""
    found: list[str] = []
    for name, wanted in _EXPECTED.items():
        method = getattr(type(runner), name, None)
        names = set() if method is None else set(inspect.unwrap(method).__code__.co_names)
        found += [f"{name}: {one}" for one in sorted(wanted - names)]
    found += [name for name in ("discard_request_mask", "input_batch") if not hasattr(runner, name)]
    if not found and not isinstance(getattr(runner.input_batch, "generators", None), dict):
        found.append("input_batch.generators")
    return found
