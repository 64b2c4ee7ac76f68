"""The choice of an instance for other gateways: the same objects as in a gateway of a fleet, without its agents.

Envoy asks ``endpoint_picker``, for llm-d and the Gateway API's inference extension; Ray Serve asks ``serve_router``.
Both say what they know of servers that others started, as reports on instances, and have requests read and instances
chosen by :mod:`sloserve.fleet.gateway`.
"""
