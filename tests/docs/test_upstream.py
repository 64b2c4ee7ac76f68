"""The patches that docs/upstream.md offers to vLLM apply to the version that the page names."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from sloserve.vllm_plugin.versions import installed_vllm
from tests.docs.pages import ROOT, Block, blocks_of

PAGE = ROOT / "docs" / "upstream.md"
PATCHES = [block for block in blocks_of(PAGE) if block.language == "diff"]


@pytest.mark.slow
@pytest.mark.parametrize("patch", PATCHES, ids=str)
def test_it_applies_and_compiles(patch: Block, tmp_path: Path) -> None:
    (version,) = re.findall(r"Faults of vLLM (\S+) that", PAGE.read_text())
    if installed_vllm() != version:
        pytest.skip(f"the patch is made for vLLM {version}")
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    (name,) = re.findall(r"^--- a/(\S+)$", patch.code, re.MULTILINE)
    patched = tmp_path / name
    patched.parent.mkdir(parents=True)
    source = (Path(spec.origin).parents[1] / name).read_text()
    patched.write_text(source)
    command = ["git", "apply", "--whitespace=error-all", "-"]
    subprocess.run(command, cwd=tmp_path, input=patch.code, text=True, check=True, timeout=280)
    assert patched.read_text() != source
    compile(patched.read_text(), name, "exec")
