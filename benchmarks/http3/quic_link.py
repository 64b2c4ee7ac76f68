"""A lossy link between two network namespaces of this machine, for UDP and the kernel's TCP alike. Needs root.

``netem`` shapes a veth pair where the kernel has it. Else each namespace has a TUN device, and a process of its own is
the wire between them: it drops packets at random, serialises the rest at the link's rate behind a queue of limited
length, and hands each over after the delay. Both directions are shaped alike, each with draws of its own seed.
:attr:`Link.backend` says which it is.
"""

import fcntl
import heapq
import json
import math
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("sloserve-qa", "sloserve-qb")
ADDRESSES = ("10.231.7.1", "10.231.7.2")
MTU = 1500
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x0001 | 0x1000


@dataclass(frozen=True, slots=True)
class LinkShape:
    """One direction: bits per second, share of packets lost, seconds one way, packets in the queue."""

    rate_bps: float = 5e6
    loss: float = 0.005
    delay_s: float = 0.05
    queue_packets: int = 1000
    seed: int = 0


class Direction:
    """What becomes of packets in one direction; knows no clock."""

    def __init__(self, shape: LinkShape, number: int) -> None:
        self._shape = shape
        self._draws = np.random.default_rng((shape.seed, number))
        self._departures: list[float] = []
        self._free_s = -math.inf
        self.counts = {"packets": 0, "lost": 0, "overflowed": 0, "bytes": 0}

    def offer(self, size_bytes: int, now_s: float) -> float | None:
        """When a packet that comes now is handed over, ``None`` where it is not."""
        self.counts["packets"] += 1
        if self._draws.random() < self._shape.loss:
            self.counts["lost"] += 1
            return None
        while self._departures and self._departures[0] <= now_s:
            heapq.heappop(self._departures)
        if len(self._departures) >= self._shape.queue_packets:
            self.counts["overflowed"] += 1
            return None
        self.counts["bytes"] += size_bytes
        self._free_s = max(self._free_s, now_s) + size_bytes * 8 / self._shape.rate_bps
        heapq.heappush(self._departures, self._free_s)
        return self._free_s + self._shape.delay_s


def run_wire(devices: tuple[int, int], commands: int, replies: int) -> None:
    """The wire's process: carries packets until its pipe of commands is closed. A line of JSON is a new shape."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # it needs little, and at once: waiting would be delay
    directions = [Direction(LinkShape(), 0), Direction(LinkShape(), 1)]
    waiting: list[tuple[float, int, int, bytes]] = []
    late_s: list[float] = []
    order = 0
    while True:
        now_s = time.perf_counter()
        while waiting and waiting[0][0] <= now_s:
            due_s, _, to, packet = heapq.heappop(waiting)
            late_s.append(now_s - due_s)
            try:
                os.write(devices[to], packet)
            except OSError:
                pass  # the other end's device is down
        timeout_s = max(waiting[0][0] - now_s, 0.0) if waiting else 1.0
        ready, _, _ = select.select([*devices, commands], [], [], timeout_s)
        now_s = time.perf_counter()
        for number, device in enumerate(devices):
            if device in ready:
                packet = os.read(device, 65536)
                at_s = directions[number].offer(len(packet), now_s)
                if at_s is not None:
                    order += 1
                    heapq.heappush(waiting, (at_s, order, 1 - number, packet))
        if commands in ready:
            line = os.read(commands, 65536)
            if not line:
                return
            late_ms = [round(float(x) * 1e3, 2) for x in np.quantile(late_s or [0.0], (0.5, 0.99, 1.0))]
            told = {"up": directions[0].counts, "down": directions[1].counts, "late_ms": late_ms}
            os.write(replies, json.dumps(told).encode() + b"\n")
            shape = LinkShape(**json.loads(line))
            directions = [Direction(shape, 0), Direction(shape, 1)]
            waiting.clear()
            late_s.clear()


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    os.set_blocking(device, True)
    return device


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def has_netem() -> bool:
    """Whether this kernel shapes with netem."""
    _ip("link", "add", "sloserve-p0", "type", "veth", "peer", "name", "sloserve-p1")
    try:
        command = ["tc", "qdisc", "add", "dev", "sloserve-p0", "root", "netem", "delay", "1ms"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    finally:
        _ip("link", "del", "sloserve-p0")


def why_not() -> str | None:
    """Why there can be no link here, ``None`` where there can."""
    if os.geteuid() != 0:
        return "a link between network namespaces needs root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    if subprocess.run(["ip", "netns"], capture_output=True, check=False).returncode != 0:
        return "there is no `ip netns`"
    return None


class Link:
    """Two namespaces and what is between them; made by :func:`link`."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._wire: subprocess.Popen[bytes] | None = None

    def command(self, end: int, *words: str) -> list[str]:
        """``words`` as a command that runs at one end."""
        return ["ip", "netns", "exec", NAMES[end], *words]

    def shape(self, shape: LinkShape) -> dict[str, Any]:
        """The link is like that from now on, and empty; what it carried since the last call."""
        if self.backend == "netem":
            return self._shape_netem(shape)
        assert self._wire is not None and self._wire.stdin is not None and self._wire.stdout is not None
        self._wire.stdin.write(json.dumps(asdict(shape)).encode() + b"\n")
        self._wire.stdin.flush()
        return dict(json.loads(self._wire.stdout.readline()))

    def _shape_netem(self, shape: LinkShape) -> dict[str, Any]:
        for name in NAMES:
            words = ["rate", f"{shape.rate_bps:.0f}bit", "loss", f"{shape.loss:%}", "delay", f"{shape.delay_s:f}s"]
            words += ["limit", str(shape.queue_packets)]
            command = ["tc", "qdisc", "replace", "dev", name, "root", "netem", *words]
            subprocess.run(["ip", "netns", "exec", name, *command], check=True, capture_output=True)
        return {}

    def start_wire(self, devices: tuple[int, int]) -> None:
        command = [sys.executable, "-m", "benchmarks.http3.quic_link", *map(str, devices)]
        self._wire = subprocess.Popen(command, pass_fds=devices, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def stop_wire(self) -> None:
        if self._wire is not None:
            self._wire.communicate()


@contextmanager
def link(backend: str | None = None) -> Iterator[Link]:
    """A link that is gone afterwards. backend: ``netem`` or ``tun``; ``None`` for netem where there is one."""
    made = Link(backend or ("netem" if has_netem() else "tun"))
    devices: list[int] = []
    try:
        for name in NAMES:
            _ip("netns", "add", name)
        if made.backend == "netem":
            _ip("link", "add", NAMES[0], "type", "veth", "peer", "name", NAMES[1])
        else:
            devices = [_tun(name) for name in NAMES]
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            _ip("link", "set", name, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            _ip("-n", name, "link", "set", name, "mtu", str(MTU), "txqueuelen", "5000", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        if devices:
            made.start_wire((devices[0], devices[1]))
        yield made
    finally:
        made.stop_wire()
        for device in devices:
            os.close(device)
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


if __name__ == "__main__":
    run_wire((int(sys.argv[1]), int(sys.argv[2])), sys.stdin.fileno(), sys.stdout.fileno())
