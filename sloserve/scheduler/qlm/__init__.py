"""QLM on one engine: a plan of :mod:`sloserve.virtual_queues` for one instance that has one model."""
