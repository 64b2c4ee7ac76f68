"""The front end's part: a request whose SLO cannot be read is answered with 400 before it is queued, streamed or not.

vLLM carries ``vllm_xargs`` to the engine unread, where a refusal would come too late: a stream has its 200 by then. So
``AsyncLLM.generate`` gets a check that runs when it is called, not when the stream is first read. :func:`install` is
registered as a ``vllm.general_plugins`` entry point, hence works under plain ``vllm serve`` and in each of several API
processes, and leaves engines alone that do not run our scheduler.
"""

import functools
from typing import Any

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import ClassTable
from sloserve.vllm_plugin.config import KEY, plugin_settings
from sloserve.wire.xargs import parse_slo


def install() -> None:
    """Makes ``AsyncLLM.generate`` check SLOs; a second call changes nothing."""
    from vllm.v1.engine.async_llm import AsyncLLM

    stock = AsyncLLM.generate
    if hasattr(stock, "__wrapped__"):
        return

    @functools.wraps(stock)
    def generate(self: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        if runs_our_scheduler(self.vllm_config):
            classes = plugin_settings(self.vllm_config.additional_config).classes
            check_slo(getattr(sampling_params, "extra_args", None), classes)
        return stock(self, prompt, sampling_params, *args, **kwargs)

    AsyncLLM.generate = generate


def runs_our_scheduler(vllm_config: Any) -> bool:
    """Whether the engine was configured with our scheduler, as a path or as a class, or a subclass of it."""
    scheduler_cls = vllm_config.scheduler_config.scheduler_cls
    if isinstance(scheduler_cls, type):
        return any(base.__module__.startswith("sloserve.") for base in scheduler_cls.__mro__)
    additional_config = vllm_config.additional_config
    return str(scheduler_cls).startswith("sloserve.") or (
        isinstance(additional_config, dict) and KEY in additional_config
    )


def check_slo(extra_args: dict[str, Any] | None, classes: ClassTable) -> None:
    """Raises: vLLM's validation error, which its server answers with 400, for an SLO that cannot be read."""
    from vllm.exceptions import VLLMValidationError

    try:
        parse_slo(extra_args, classes)
    except InvalidRequest as error:
        raise VLLMValidationError(str(error), parameter=f"vllm_xargs.{error.field}") from error
