"""The type stub of the compiled extension, as nanobind's stubgen makes it from the installed extension.

Usage: python -m tests.csrc.stub writes it beside the package that the extension belongs to (``make stub``).
"""

from pathlib import Path

import sloserve.core.kernels
from sloserve.core.kernels import _csrc

STUB = Path(sloserve.core.kernels.__file__).with_name("_csrc.pyi")


def generate() -> str:
    from nanobind.stubgen import StubGen

    stub = StubGen(_csrc)
    stub.put(_csrc)
    return f"# Made by nanobind's stubgen from csrc/bindings: make stub.\n{stub.get()}"


if __name__ == "__main__":
    STUB.write_text(generate())
