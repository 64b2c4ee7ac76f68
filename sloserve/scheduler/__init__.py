"""Scheduling policies and their contract: a policy turns a snapshot into a plan, and knows nothing of vLLM.

The package imports lso and below. Add a policy as one file and one entry point (docs/add-a-policy.md).
"""
