"""QLM: request groups, virtual queues and the plan of a fleet. Pure: told everything, no clock, no I/O.

``contract.py``: what a planner is told, and what it answers.
"""
