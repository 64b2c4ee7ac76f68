"""What other versions of vLLM lack or do otherwise, as marks for tests: what ``make compat`` leaves out, and why."""

from pathlib import Path

import pytest

from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.vllm_plugin.versions import installed_vllm

IS_0_30 = str(installed_vllm()).startswith("0.30.")
IS_0_31 = str(installed_vllm()).startswith("0.31.")
IS_0_33 = str(installed_vllm()).startswith("0.33.")


def not_with_0_30(reason: str) -> pytest.MarkDecorator:
    """Skips a test with vLLM 0.30. reason: what that version does otherwise."""
    return pytest.mark.skipif(IS_0_30, reason=reason)


def needs_float32_mamba() -> None:
    """Skips the test of a Mamba layer where no reply of one can be compared token by token."""
    if IS_0_30 or IS_0_31:
        pytest.skip("vLLM's CPU kernels for Mamba took no float32 before 0.32")


def needs_own_prefill_interval() -> None:
    """Skip the test where no scheduler counts the steps of ``--prefill-schedule-interval`` itself."""
    if not IS_0_33:
        pytest.skip("before 0.33 vLLM applied --prefill-schedule-interval to data parallel ranks alone")


def needs_numa_node_of_each_rank(ranks: int) -> None:
    """Skip the test where the CPU workers of this vLLM cannot start so many data parallel ranks."""
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    if IS_0_33 and nodes < ranks:
        pytest.skip(f"vLLM 0.33 gives each data parallel rank on CPUs a NUMA node of its own, and there are {nodes}")


def follows_mamba(caches: bool) -> bool:
    """Whether the simulator's model follows this vLLM where layers keep states. caches: with a prefix cache.

    It follows 0.32. In 0.31 the chunks of prompts end elsewhere; 0.33 gives back states of the prefix cache earlier, so
    that it sometimes admits a request earlier.
    """
    return not IS_0_31 and not (IS_0_33 and caches)


def follows_hits(settings: EngineSettings) -> bool:
    """Whether the simulator's model takes and finds blocks as this vLLM does where there are drafts.

    It follows 0.32. Since 0.33 a draft head has no block computed again where there is no KV connector; 0.31 takes
    other blocks for drafts beside a prefix cache, swap space, and layers that do not keep the whole context.
    """
    if IS_0_31 and (settings.enable_prefix_caching or settings.swap_space_gib or settings.kv_groups):
        return False
    return not (IS_0_33 and settings.enable_prefix_caching and settings.drops_found_block) or bool(
        settings.swap_space_gib
    )


def has_mamba_all() -> bool:
    """Whether vLLM can keep a Mamba state at the end of each block, its mode ``all``."""
    return not IS_0_33
