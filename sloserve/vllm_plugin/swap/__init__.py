"""Keep KV of preempted requests in host memory: vLLM's connector, and the worker's side of the host pool."""
