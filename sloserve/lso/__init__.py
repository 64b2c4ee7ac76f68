"""Serving operations (QLM, Sec. 5) as pure functions over the request table: what to do, and what it costs."""
