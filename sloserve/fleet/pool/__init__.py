"""Pools: they supply the agents of a fleet, start them again, and add hosts."""
