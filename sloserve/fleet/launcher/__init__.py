"""Starts engines for an agent, as processes that die with it."""
