"""When does each request of a queue get its first and its last token? Distributions, from the work ahead of it.

Imports core and the two other subjects. The planner of a fleet will ask here.
"""
