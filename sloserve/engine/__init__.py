"""The engine port: planner, plan budget, ageing, guards and shadow, between any engine and a policy.

Imports scheduler and below, never vLLM: live and virtual engines use the very same objects.
"""
