"""QLM on one engine: a plan of :mod:`sloserve.scheduler.virtual_queues` for one instance that has one model."""
