"""Let a CPU with AVX-512 pass for one that has AVX2 alone: ``PYTHONPATH=$PWD/tests/avx2 make test``.

Python loads this module in each process that has the folder on its path. PyTorch, oneDNN and MKL take their own
variables, which have to be set before they are loaded. vLLM chooses its compiled kernels by what ``torch.cpu`` answers.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

os.environ |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

_NEWER = ("avx512", "amx", "vnni")
"""Parts of the names of ``torch.cpu``'s questions about what AVX2 alone lacks."""


class _Finder(importlib.abc.MetaPathFinder):
    """Find ``torch.cpu`` as the other finders do, and answer its questions with no once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch.cpu":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            for question in vars(module):
                if question.startswith("_is_") and any(part in question for part in _NEWER):
                    setattr(module, question, lambda: False)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
