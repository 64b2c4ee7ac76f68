"""The recipe for an image that has vLLM names what the package needs there."""

import re
import tomllib

from sloserve.vllm_plugin.versions import TESTED_VLLM
from tests.docs.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "existing-vllm.md"


def test_the_image_has_a_tested_vllm_and_what_vllm_does_not_bring() -> None:
    (recipe,) = [block.code for block in blocks_of(PAGE) if "FROM vllm/vllm-openai" in block.code]
    version = re.search(r"FROM vllm/vllm-openai:v([\d.]+)", recipe)
    assert version is not None and version[1] in TESTED_VLLM
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    beside_vllm = {re.split(r"[<>=]", one)[0] for one in extras["gpu"]} - {"vllm"}
    installed = re.search(r"pip install (.*)", recipe)
    assert installed is not None and beside_vllm <= set(installed[1].split())
