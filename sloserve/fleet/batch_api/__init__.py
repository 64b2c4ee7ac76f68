"""OpenAI's Files and Batch API on the store.

What a client uploads is validated, served as durable requests, and assembled into files of results.
"""
