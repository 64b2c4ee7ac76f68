"""Code of vLLM's engine process: the scheduler class, what it reads of vLLM's requests, how it applies a plan.

Only ``compat.py`` names vLLM's private attributes.
"""
