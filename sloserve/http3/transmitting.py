"""The asyncio protocol that both ends of an HTTP/3 connection share."""

from aioquic.asyncio.protocol import QuicConnectionProtocol

from sloserve.http3.bounded_h3 import BoundedH3
from sloserve.http3.scheduled_connection import ScheduledConnection


class TransmittingProtocol(QuicConnectionProtocol):
    """Sends together what several callbacks have written, so that packets are filled.

    Once ``is_over`` is true, nothing more is sent, except to end the connection.
    """

    def __init__(self, quic: ScheduledConnection) -> None:
        super().__init__(quic)
        self.quic = quic
        self.is_over = False
        self._h3: BoundedH3 | None = None
        self._sending = False

    def transmit_soon(self) -> None:
        """Send what there is to send once the callbacks at hand are done."""
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._transmit_once)

    def _transmit_once(self) -> None:
        self._sending = False
        if not self.is_over:
            self.transmit()
