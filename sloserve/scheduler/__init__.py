"""Scheduling policies and the contract they are written against: rows in, plan out. Knows nothing of vLLM."""
