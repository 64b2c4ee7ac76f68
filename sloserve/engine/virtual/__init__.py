"""An engine in virtual time, but for its scheduler: settings, front end, loop, and copies of KV. Knows no vLLM.

Its scheduler is vLLM's own (``sloserve/vllm_plugin/virtual``) or a model of it (``sloserve/sim/model``).
"""
