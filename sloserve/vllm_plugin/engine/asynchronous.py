"""Choose which of vLLM's two schedulers ours is based on."""

from functools import cache
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler


@cache
def asynchronous(cls: type[Any]) -> type[Any]:
    """Return ``cls`` on top of vLLM's AsyncScheduler."""
    return type(cls.__name__, (cls, AsyncScheduler), {"__module__": cls.__module__, "__doc__": cls.__doc__})
