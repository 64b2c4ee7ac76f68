"""Imports what a server and an engine of builtin:tiny do, once for all that the fork server of tests/forked.py forks.

What is imported lives to the end of each forked process, in which no collection of garbage looks at it again: vLLM
collects seven times from an engine's start to its end, at half a CPU second each.
"""

import contextlib
import gc
from importlib import import_module

NAMES = (
    "sloserve.cli",
    "sloserve.api.middleware",
    "sloserve.vllm_plugin",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)

gc.disable()
for name in NAMES:
    with contextlib.suppress(ImportError):  # a version of vLLM without it, or an environment without vLLM
        import_module(name)
gc.freeze()
gc.enable()
