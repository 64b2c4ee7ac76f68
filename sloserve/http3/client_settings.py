"""A client's side of an HTTP/3 connection, as its user chooses it."""

import ssl
from dataclasses import dataclass

from aioquic.quic.configuration import QuicConfiguration

from sloserve.core.errors import ConfigError
from sloserve.http3.congestion import congestion_name


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client's side of a connection.

    Args:
        scheduler: The stream scheduler for what the client sends.
        congestion: See :class:`~sloserve.wire.optional_http3.Http3Settings`.
        window_bytes: See :class:`~sloserve.wire.optional_http3.Http3Settings`.
        ca_file: Authorities that may have signed the server's certificate; ``None`` for the authorities of the system.
        verify: Whether the server's certificate is checked; ``False`` takes any, for tests alone.
        certfile: Certificate of the client itself, for a server that asks for one.
        keyfile: Key of the client's certificate.
        server_name: The name that the certificate must have; ``None`` for the host that is connected to.
        idle_s: Seconds of silence after which a connection ends.
        keep_alive_s: Seconds between the pings that show that the connection is in use; ``None`` for no pings.
        silent_s: Seconds after which a server that sends nothing, not even in response to pings, is given up; ``None``
            to wait for ``idle_s``.
        buffer_bytes: Most bytes of a request's body that may wait to be acknowledged before the sender waits.
        requests: The number of requests that are expected at once; a response that no one reads takes up its own part
            of the window alone.
    """

    scheduler: str = "edf"
    congestion: str = "cubic"
    window_bytes: int = 75_000
    ca_file: str | None = None
    verify: bool = True
    certfile: str | None = None
    keyfile: str | None = None
    server_name: str | None = None
    idle_s: float = 60.0
    keep_alive_s: float | None = None
    silent_s: float | None = None
    buffer_bytes: int = 262_144
    requests: int = 128

    def configuration(self, host: str) -> QuicConfiguration:
        """Return the configuration of aioquic for a connection to ``host``.

        Raises: ConfigError for files that cannot be read.
        """
        made = QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            idle_timeout=self.idle_s,
            congestion_control_algorithm=congestion_name(self.congestion, self.window_bytes),
            server_name=self.server_name or host,
            verify_mode=None if self.verify else ssl.CERT_NONE,
        )
        try:
            if self.ca_file is not None:
                with open(self.ca_file, "rb") as file:
                    made.load_verify_locations(cadata=file.read())
            if self.certfile is not None:
                made.load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ValueError, TypeError, IndexError) as error:
            files = ", ".join(name for name in (self.ca_file, self.certfile, self.keyfile) if name)
            raise ConfigError(f"{files}: no PEM certificates or key: {error}") from error
        return made
