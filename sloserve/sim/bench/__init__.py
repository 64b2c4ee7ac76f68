"""``sloserve bench``: workloads replayed against a live endpoint, reported as simulations are.

The package imports workloads, report and client.
"""
