"""Signals to a process of a fleet: SIGINT and SIGTERM stop it, and on SIGHUP it reads the fleet's file again."""

import asyncio
import logging
import os
import signal
from typing import Final

logger = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """An event that SIGINT or SIGTERM sets, in the event loop in which it was made."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._event.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # a process that has restarted itself blocks them

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Return once the process shall end."""
        await self._event.wait()

    def again(self) -> None:
        """Forget the signals up to now: the next one counts as the first."""
        self._event.clear()


class HangUps:
    """An event that SIGHUP sets, in the event loop in which it was made.

    Where the signal is ignored from the start, as under nohup, it stays so. Where the terminal is gone the signal ends
    the process as SIGTERM does: it would keep the devices unseen.
    """

    def __init__(self) -> None:
        self._event, self._at_terminal = asyncio.Event(), _has_terminal()
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            logger.info("SIGHUP is ignored, as under nohup, and does not have the fleet's file read again")
            return
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._come)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a process that has restarted itself blocks it

    async def next(self) -> None:
        """Return once the file shall be read again; signals that came since the last return count as one."""
        await self._event.wait()
        self._event.clear()

    def set(self) -> None:
        """Have the file read again, as the signal does."""
        self._event.set()

    def _come(self) -> None:
        if self._at_terminal and not _has_terminal():
            logger.warning(
                "SIGHUP: the terminal is gone, so the process ends; start it under nohup, setsid or systemd to keep it"
            )
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._event.set()


def hang_up_self() -> None:
    """Send SIGHUP to this process, unless it would end of it."""
    if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, signal.SIG_IGN):
        logger.warning("the fleet's file has changed, and this process does not take SIGHUP now; start it again")
        return
    os.kill(os.getpid(), signal.SIGHUP)


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
