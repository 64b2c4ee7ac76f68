"""Where vLLM's own tests are not in the cache yet, fetching them works in any process that runs tests."""

import sys
from types import ModuleType

import pytest

from tests.upstream import fetch


def test_pip_is_found_where_distutils_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setuptools' import hook would replace distutils when pip is looked for as a module, and warn of it."""
    monkeypatch.setitem(sys.modules, "distutils", ModuleType("distutils"))
    assert fetch._pip() == [sys.executable, "-m", "pip"]
