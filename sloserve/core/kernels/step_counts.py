"""Counts of the request table that follow from what a step schedules and brings: :mod:`sloserve.engine.step_counts`."""

from sloserve.core.kernels._csrc import StepCounts

__all__ = ["StepCounts"]
