"""Scheduling policies and their contract: a snapshot in, a plan out. Knows nothing of vLLM.

Imports lso and below. Add a policy as one file and one entry point (docs/add-a-policy.md).
"""
