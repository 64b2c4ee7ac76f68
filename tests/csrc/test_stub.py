"""The stub that mypy reads says what the installed extension takes and returns."""

import pytest

from tests.csrc import stub


def test_the_stub_is_what_stubgen_makes() -> None:
    pytest.importorskip("nanobind", reason="NOT TESTED: nanobind is not installed (make env)")
    assert stub.STUB.read_text() == stub.generate(), "csrc/bindings changed: make stub"
