"""``sloserve fleet`` in virtual time: the live fleet's own decisions, driven by the event heap in place of asyncio."""
