"""Addresses that a server listens on."""

import ipaddress


def is_exposed(host: str | None) -> bool:
    """Return whether other machines may reach a server that listens on ``host``; an unknown name counts as such."""
    try:
        return not ipaddress.ip_address(host or "::").is_loopback
    except ValueError:
        return host != "localhost"
