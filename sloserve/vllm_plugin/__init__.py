"""Everything that touches vLLM: the scheduler plugin, its guards, the virtual engine and the server. Nothing else
imports vllm.

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
