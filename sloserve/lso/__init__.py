"""Serving operations that every policy may use (QLM, Sec. 5): snapshot and plan, ordering, preemption, pausing.

The package imports core, kernels and estimator. Add an operation here as a pure function over the request table.
"""
