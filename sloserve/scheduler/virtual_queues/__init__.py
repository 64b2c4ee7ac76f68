"""Planning over instances: request groups, virtual queues, what a queue asks of its instance, the cost of model swaps.

The package is pure: all it needs is an argument, and it has neither clock nor I/O. ``contract.py`` defines a planner's
input and output. A live fleet and a simulated one plan by it, and policy ``qlm`` plans a fleet of one instance.

Source: QLM, Sec. 4 to 7.
"""
