"""Check what the host has: shared memory, processors, free ports, and a clock that can be trusted."""

import ctypes
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sloserve.cli.doctor.finding import Finding, absent, fault, ok, warning
from sloserve.core.errors import ConfigError
from sloserve.core.listening import check_port_free

GIB: Final = 2**30
LEAST_SHM_BYTES: Final = GIB
"""Least size of /dev/shm, for messages between vLLM's processes; containers have 64 MiB by default, deploy/ 2 GiB."""
LEAST_CPUS: Final = 2
"""The server and the engine's loop each take one while requests stream."""
MOST_CLOCK_ERROR_S: Final = 0.1
"""A fifth of a usual TTFT target: agents and gateways compare the times of their own clocks."""
_UNSYNCHRONISED: Final = 5
_SLOW_CLOCKS: Final = ("hpet", "acpi_pm", "refined-jiffies", "jiffies")


def shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    try:
        found = os.statvfs(folder)
    except OSError as error:
        yield fault(
            "shared memory", f"{folder}: {error.strerror}", f"mount a tmpfs there: mount -t tmpfs tmpfs {folder}"
        )
        return
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    text = f"{folder}: {free / GIB:.2f} of {size / GIB:.2f} GiB free"
    if free < LEAST_SHM_BYTES:
        yield warning(
            "shared memory", text, "in a container: --shm-size 2g; else delete what dead processes left there"
        )
    else:
        yield ok("shared memory", text)


def processors() -> Iterator[Finding]:
    count = len(os.sched_getaffinity(0))
    if count < LEAST_CPUS:
        yield warning("processors", f"{count}", f"give {LEAST_CPUS}: the server and the engine each take one")
    else:
        yield ok("processors", f"{count}")


def ports(host: str, numbers: Sequence[int]) -> Iterator[Finding]:
    for number in numbers:
        try:
            check_port_free(host, number)
        except ConfigError as error:
            reason, _, remedy = str(error).partition("; ")
            yield fault(f"port {number}", reason, f"{remedy}; `ss -ltnp 'sport = :{number}'` shows who has it")
        else:
            yield ok(f"port {number}", f"free on {host}")


def clock_synchronised() -> Iterator[Finding]:
    """Yield whether the kernel reports a synchronised clock (ntp_adjtime(3)); an NTP client sets that."""
    libc = ctypes.CDLL(None)
    said = (ctypes.c_long * 16)()  # struct ntptimeval: seconds, microseconds, maxerror, esterror in microseconds, ...
    try:
        state = libc.ntp_gettimex(ctypes.byref(said))
    except AttributeError:
        state = -1
    yield clock_finding(state, said[2] / 1e6)


def clock_finding(state: int, most_error_s: float) -> Finding:
    """Return the finding about the clock.

    Args:
        state: The result of ``ntp_gettime``; below 0 if it cannot be read.
        most_error_s: The largest error of the clock that the kernel reports, in seconds.
    """
    if state < 0:
        return absent("clock", "the kernel does not say whether it is synchronised")
    remedy = "in a fleet on several machines, run chrony or another NTP client on each: deadlines compare their clocks"
    if state == _UNSYNCHRONISED:
        return warning("clock", "not synchronised", remedy)
    if most_error_s > MOST_CLOCK_ERROR_S:
        return warning("clock", f"off by up to {most_error_s:.2g} s", remedy)
    return ok("clock", f"synchronised, off by at most {most_error_s * 1e3:.2g} ms")


def clock_source(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield the source from which the kernel reads the time, since each token of each stream asks for it."""
    try:
        source = (
            (root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
            .read_text(encoding="utf-8")
            .strip()
        )
    except OSError:
        yield absent("clock source", "not reported by the kernel")
        return
    if source in _SLOW_CLOCKS:
        yield warning(
            "clock source", f"{source}, a slow one", "boot with clocksource=tsc, or give the virtual machine kvm-clock"
        )
    else:
        yield ok("clock source", source)
