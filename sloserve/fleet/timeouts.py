"""Says which limit of an HTTP client was reached: aiohttp raises a kind of TimeoutError for each of them."""

import aiohttp


def limit_reached(
    error: TimeoutError, *, connect_s: float, silent_s: float | None = None, whole_s: float | None = None
) -> str:
    """Return which limit was reached, and its value.

    Args:
        error: Error of the client.
        connect_s: Seconds that a connection may take.
        silent_s: Seconds for which nothing may come; ``None`` for no limit.
        whole_s: Seconds that all may take together; ``None`` for no limit.
    """
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection within {connect_s:g} s"
    if isinstance(error, aiohttp.SocketTimeoutError) and silent_s is not None:
        return f"nothing came for {silent_s:g} s"
    return "no response in time" if whole_s is None else f"no response within {whole_s:g} s"
