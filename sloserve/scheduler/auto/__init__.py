"""One policy for all kinds of targets: the gain of serving a request now, per unit of what it costs."""
