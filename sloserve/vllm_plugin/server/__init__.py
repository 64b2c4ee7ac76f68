"""Code of vLLM's API process: the wrapper around ``AsyncLLM``, ``sloserve serve``, and calls to the engines.

It imports admission, metrics, scheduler and wire.
"""
