"""A pytest plugin (``-p tests.substitute``) that has tests import one module of sloserve from another file.

The environment variable SLOSERVE_SUBSTITUTE says which: ``sloserve.module=path``; the path is a Python file or a
compiled extension. Processes that a test starts import the original.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

VARIABLE = "SLOSERVE_SUBSTITUTE"


class _Finder:
    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path) if name == self.name else None


if VARIABLE in os.environ:
    _name, _, _path = os.environ[VARIABLE].partition("=")
    assert _name not in sys.modules, f"{_name} is imported already"
    sys.meta_path.insert(0, _Finder(_name, _path))
