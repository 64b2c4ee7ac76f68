"""Predictions about the engine and its requests; each subpackage answers one question.

Imports core, files, kernels. Add an estimator in ``step_time``, ``length`` or ``completion``.
"""
