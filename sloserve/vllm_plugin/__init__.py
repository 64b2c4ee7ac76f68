"""The only package that imports vLLM: the scheduler class, the KV connector, the server, and vLLM in virtual time.

``sloserve.vllm_plugin.SLOScheduler`` is the name to give to vLLM's ``--scheduler-cls``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sloserve.vllm_plugin.engine.scheduler import SLOScheduler

__all__ = ["SLOScheduler"]


def __getattr__(name: str) -> Any:
    # Lazily, so that the command line can use this package's light modules without importing vllm.
    if name == "SLOScheduler":
        from sloserve.vllm_plugin.engine.scheduler import SLOScheduler

        return SLOScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
