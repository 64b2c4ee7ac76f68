"""When does each request of a queue get its first and its last token? Distributions, from the work ahead of it.

Imports core and the two other subjects. Nothing that serves calls it yet: the planner of a fleet will,
and benchmarks/estimator/completion_accuracy.py measures how well it foresees.
"""
