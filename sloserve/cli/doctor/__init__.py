"""``sloserve doctor``: what on this machine could keep a server from starting, or slow it down.

Each check reads, and changes nothing; vLLM and torch are not loaded. :mod:`~sloserve.cli.doctor.examine` runs all.
"""
