"""In vLLM's API process: the wrapper around ``AsyncLLM``, ``sloserve serve``, calls to the engines.

Imports admission, metrics, scheduler, wire.
"""
