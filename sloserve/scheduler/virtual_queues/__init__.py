"""Planning over instances: request groups, virtual queues, what a queue asks of its instance, the cost of model swaps.

Pure: told everything, no clock, no I/O. ``contract.py``: what a planner is told, and what it answers. A live fleet and
a simulated one plan by it, and policy ``qlm`` plans a fleet of one instance.

Source: QLM, Sec. 4 to 7.
"""
