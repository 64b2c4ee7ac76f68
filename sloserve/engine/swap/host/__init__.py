"""The host pool that keeps KV of preempted requests, and copies between it and the device; knows no vLLM and no torch.

What vLLM's connector does with them is in ``sloserve/vllm_plugin/swap``.
"""
