"""In vLLM's engine process: the scheduler class, what it reads of vLLM's requests, how it applies a plan.

``compat.py`` alone names vLLM's private attributes.
"""
