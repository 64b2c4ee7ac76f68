"""Stateless resets (RFC 9000, Sec. 10.3): how a server that has lost a connection, as by a restart, tells its client.

Tokens are derived from the private key of the server's certificate and its port, so that they outlive the process. They
are sent at a rate, and each is shorter than what it answers, so that two ends cannot keep each other busy.
"""

import hmac
import os
from collections.abc import Callable

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

TOKEN_BYTES = 16
SHORTEST_BYTES = 21
LONGEST_BYTES = 43
"""A reset looks like a short packet with a few unpredictable bytes before the token."""


def tokens(private_key: bytes, port: int) -> Callable[[bytes], bytes]:
    """Return a function that makes the token of a connection id.

    Args:
        private_key: Bytes of the certificate's private key, as :func:`key_bytes` returns them.
        port: UDP port of the listener.
    """
    key = hmac.digest(private_key, b"sloserve stateless reset %d" % port, "sha256")
    return lambda connection_id: hmac.digest(key, connection_id, "sha256")[:TOKEN_BYTES]


def key_bytes(private_key: object) -> bytes:
    """Return a certificate's private key as bytes."""
    return private_key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())  # type: ignore[attr-defined,no-any-return]


def stateless_reset(token: bytes, answered_bytes: int) -> bytes | None:
    """Return a reset in response to a datagram.

    Args:
        token: Token of the connection id.
        answered_bytes: Size of the datagram; ``None`` is returned if it is too short for a response.
    """
    size = min(answered_bytes - 1, LONGEST_BYTES)
    if size < SHORTEST_BYTES:
        return None
    noise = bytearray(os.urandom(size - TOKEN_BYTES))
    noise[0] = 0x40 | noise[0] & 0x3F
    return bytes(noise) + token


def is_stateless_reset(datagram: bytes, token: bytes) -> bool:
    """Return whether a datagram ends the connection with this token; an empty token gives ``False``."""
    short = len(datagram) >= SHORTEST_BYTES and not datagram[0] & 0x80
    return short and len(token) == TOKEN_BYTES and hmac.compare_digest(datagram[-TOKEN_BYTES:], token)
