"""``sloserve bench``: joins workloads (``sim``), the client and the reports of the simulator; ``cli`` calls it."""
