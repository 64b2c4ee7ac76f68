"""What older versions of vLLM lack, as marks for the tests that need it: what ``make compat`` leaves out, and why."""

import pytest

from sloserve.vllm_plugin.versions import installed_vllm

IS_0_30 = str(installed_vllm()).startswith("0.30.")
IS_0_31 = str(installed_vllm()).startswith("0.31.")


def not_with_0_30(reason: str) -> pytest.MarkDecorator:
    """Skips a test with vLLM 0.30. reason: what that version does otherwise."""
    return pytest.mark.skipif(IS_0_30, reason=reason)


def needs_float32_mamba() -> None:
    """Skips the test of a Mamba layer where no reply of one can be compared token by token."""
    if IS_0_30 or IS_0_31:
        pytest.skip("vLLM's CPU kernels for Mamba took no float32 before 0.32")


def needs_chunks_at_block_ends() -> None:
    """Skips a test of the engine model whose chunks (Mamba layers that keep states at block ends) vLLM 0.31 ended
    elsewhere.
    """
    if IS_0_31:
        pytest.skip("the model follows vLLM 0.32, whose chunks end elsewhere")
