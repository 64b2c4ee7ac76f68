"""The load generator of ``sloserve bench``: sends requests to an OpenAI endpoint on time, and notes when tokens come.

Knows requests as values of ``core`` and HTTP through httpx; nothing of workload files, reports or vLLM.
"""
