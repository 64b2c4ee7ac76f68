"""One policy for all kinds of targets: what a request gains by being served now, per unit of what it takes."""
