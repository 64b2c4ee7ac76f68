"""The compiled kernels of ``csrc/``: some as they are bound, most in typed wrappers with a module for each subject.

A wrapper fixes dtypes and layout, and the compiled side checks sizes and ranges. This package imports core and numpy.
Other packages use each function that ``csrc/bindings`` binds through a wrapper here, or, where a wrapper would add
nothing, through the names below. nanobind writes the types and the docstrings of these into ``_csrc.pyi``.
"""

from sloserve.core.kernels._csrc import StepCounts, WorthColumns, WorthEngine, fit_nonnegative, how_many_fit, worth

__all__ = ["StepCounts", "WorthColumns", "WorthEngine", "fit_nonnegative", "how_many_fit", "worth"]
