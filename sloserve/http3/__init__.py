"""HTTP/3 in front of any ASGI app, with a choice of which stream's bytes leave first.

Several answers share one connection, so the order of their bytes is an order of service, as in the engine: a stream
scheduler (:mod:`sloserve.http3.stream_schedulers`) decides it for each packet. Needs the extra ``http3``.
"""
