"""Which vLLM versions this package is tested with. The one place that names them; imports nothing of vllm."""

TESTED_VLLM = ("0.30.0", "0.31.0", "0.32.0")
ALLOW_UNTESTED = "SLOSERVE_ALLOW_UNTESTED_VLLM"
"""Environment variable that, set to 1, lets an untested version start."""
