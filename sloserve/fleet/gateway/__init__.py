"""The front end of a fleet: OpenAI's API for all its models, routed by the plan, with batches beside it.

Tokens never touch the store, so streams continue while it is away. Gateways hold nothing that must not be lost: any
number of them may stand before the same agents.
"""
