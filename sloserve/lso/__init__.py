"""Serving operations that every policy may use (QLM, Sec. 5): snapshot and plan, ordering, preemption, pausing.

Imports core, kernels, estimator. Add an operation here as a pure function over the request table.
"""
