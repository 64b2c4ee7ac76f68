"""vLLM's real scheduler in virtual time: no device, no model, made-up tokens, step times from a profile.

It is the simulator's only way to vLLM.
"""
