"""``sloserve bench``: workloads replayed against a live endpoint, reported as simulations are.

Imports workloads, report, client.
"""
