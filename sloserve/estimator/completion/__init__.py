"""Time for which a group of requests keeps an engine busy, and each of them once it is served: means and deviations.

The package imports core and the two other subjects. It is used by the planner of a fleet and by ``--policy qlm``.
"""
