"""OpenAI's Files and Batch API on the store: what a client uploads is validated, served as durable requests, and
assembled into files of results.
"""
