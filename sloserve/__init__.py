"""Per-request service level objectives for vLLM: a scheduler plugin, its policies and a simulator that runs both."""

__version__ = "0.1.0"
