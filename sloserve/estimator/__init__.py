"""Predictions about the engine and its requests; each subpackage answers one question.

The package imports core, files and kernels. Add an estimator in ``step_time``, ``length`` or ``completion``.
"""
