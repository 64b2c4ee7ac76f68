"""Figures that are counted, and their way to ``/metrics``: shared-memory pages, and collectors that read them.

The package imports core and settings. Add a counter of requests as a row of ``class_metrics.COUNTS``, a figure of the
engine as a field of ``engine_figures.EngineFigures``.
"""
