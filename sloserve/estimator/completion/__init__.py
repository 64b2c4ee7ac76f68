"""How long does a group of requests keep an engine busy, and each of them once it is served? Means and deviations.

Imports core and the two other subjects. The planner of a fleet and ``--policy qlm`` call it.
"""
