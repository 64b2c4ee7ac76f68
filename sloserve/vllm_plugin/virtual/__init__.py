"""vLLM's real scheduler in virtual time: no device, no model, made-up tokens, step times from a profile.

The simulator's only way to vLLM.
"""
