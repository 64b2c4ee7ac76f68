"""The recipe for an image that has vLLM names what the package needs there."""

import re
import tomllib

from sloserve.vllm_plugin.versions import TESTED_VLLM
from tests.docs.pages import ROOT


def test_the_image_has_a_tested_vllm_and_what_vllm_does_not_bring() -> None:
    recipe = (ROOT / "deploy" / "Dockerfile.vllm").read_text()
    version = re.search(r"^ARG VLLM=v([\d.]+)$", recipe, re.MULTILINE)
    assert version is not None and version[1] in TESTED_VLLM
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    beside_vllm = {re.split(r"[<>=]", one)[0] for one in extras["gpu"]} - {"vllm"}
    installed = re.search(r"pip install (.*)", recipe)
    assert installed is not None and beside_vllm <= {
        re.split(r"[<>=]", one.strip('"'))[0] for one in installed[1].split()
    }
