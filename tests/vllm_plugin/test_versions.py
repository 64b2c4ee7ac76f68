"""Which versions of vLLM start, with a warning or not."""

import pytest

from sloserve.vllm_plugin.versions import TESTED_VLLM, Support, support_of


@pytest.mark.parametrize("version", [*TESTED_VLLM, "0.33.0+cu130", "0.32.0+cpu"])
def test_a_tested_version_is_tested_in_every_build(version: str) -> None:
    assert support_of(version) is Support.TESTED


@pytest.mark.parametrize("version", ["0.33.1", "0.31.12", "0.33.1+cu130", "0.32.0.post1"])
def test_a_patch_release_of_a_tested_minor_version_is_one(version: str) -> None:
    assert support_of(version) is Support.PATCH


@pytest.mark.parametrize(
    "version",
    ["0.29.0", "0.34.0", "0.3.0", "1.33.0", "0.33.1rc1", "0.33.1.dev84+gabc", "0.33.0.dev1", "0.33", "dev", ""],
)
def test_everything_else_is_untested(version: str) -> None:
    assert support_of(version) is Support.UNTESTED
