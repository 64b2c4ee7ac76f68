"""Both ends of QUIC connections in one process and in virtual time, over a link of :mod:`quic_link`.

An event loop whose time jumps to its next timer has sockets for datagrams that pass through the same
:class:`quic_link.Direction` as on the wire. Listener, client and aioquic are the real ones; processing takes no time.
So a busy machine changes nothing, and only a few bytes of handshakes differ. The kernel's TCP cannot be run so.
"""

import asyncio
import selectors
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from benchmarks.http3.quic_link import Direction, LinkShape

T = TypeVar("T")

START_S = 1000.0
ROUND_S = 1e-9
"""What a round of the loop takes: aioquic's loss timer may come a rounding error early, and again until time passes."""
HEADER_BYTES = 28
"""Headers of IP and UDP, which a link carries too."""


class _Selector(selectors.SelectSelector):
    """Makes the time pass that it is told to wait."""

    now_s = START_S

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing is going to happen")
        self.now_s += max(timeout, ROUND_S)
        return super().select(0)


class _Socket(asyncio.DatagramTransport):
    def __init__(self, loop: "LinkLoop", protocol: Any, address: tuple[str, int]) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._address = address
        self._closed = False

    def sendto(self, data: Any, addr: Any = None) -> None:
        self._loop.carry(bytes(data), self._address, addr[:2])

    def receive(self, data: bytes, source: tuple[str, int]) -> None:
        if not self._closed:
            self._protocol.datagram_received(data, source)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)


class LinkLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time with a link between clients and the listeners at ``server_ports``.

    shape: of both directions. What clients send goes through the first, what listeners send through the second.
    """

    def __init__(self, shape: LinkShape) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self.up, self.down = Direction(shape, 0), Direction(shape, 1)
        self._sockets: dict[tuple[str, int], _Socket] = {}
        self._listening: set[tuple[str, int]] = set()
        self._next_port = 1000  # below those that a kernel gives to listeners which ask for any

    def time(self) -> float:
        return self._virtual.now_s

    def carry(self, data: bytes, source: tuple[str, int], to: tuple[str, int]) -> None:
        direction = self.down if source in self._listening else self.up
        at_s = direction.offer(len(data) + HEADER_BYTES, self.time())
        if at_s is not None:
            self.call_at(at_s, self._deliver, data, source, to)

    def _deliver(self, data: bytes, source: tuple[str, int], to: tuple[str, int]) -> None:
        if to in self._sockets:
            self._sockets[to].receive(data, source)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (str(host), int(port)))]

    async def create_datagram_endpoint(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], local_addr: Any = None, *, sock: Any = None, **_: Any
    ) -> tuple[_Socket, Any]:
        protocol = protocol_factory()
        if sock is None:
            self._next_port += 1
            address = ("127.0.0.1", self._next_port)
        else:  # a listener's, whose port is all that is used of it
            address = sock.getsockname()[:2]
            self._listening.add(address)
            sock.close()
        made = self._sockets[address] = _Socket(self, protocol, address)
        protocol.connection_made(made)
        return made, protocol


def run(shape: LinkShape, main: Callable[[LinkLoop], Coroutine[Any, Any, T]]) -> T:
    """What ``main`` returns, in virtual time and over a link of that shape."""
    loop = LinkLoop(shape)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop))
