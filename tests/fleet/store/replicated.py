"""A PostgreSQL server with a standby, of which either may be killed, and the standby promoted."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.fleet.store.databases import Server, installed
from tests.ports import free_port


class Pair:
    """``primary`` and ``standby``, which change places when the standby is promoted."""

    def __init__(self, folder: Path, *, is_synchronous: bool) -> None:
        """is_synchronous: whether a commit waits until the standby has it on disk, too."""
        self._is_synchronous = is_synchronous
        folders = [folder / name for name in ("one", "two")]
        for each in folders:
            each.mkdir()
        one = Server(installed(folders[0]), folders[0], free_port())
        one.initialize()
        one.start()
        two = Server(installed(folders[1]), folders[1], free_port())  # another port, now that the first is taken
        self.primary, self.standby = one, two
        self.address = f"postgresql://sloserve@127.0.0.1:{one.port},127.0.0.1:{two.port}/postgres"
        """Of both."""
        self.follow()

    def follow(self) -> None:
        """Makes the standby anew from the primary."""
        self.standby.stop()
        shutil.rmtree(self.standby.data, ignore_errors=True)
        self.standby.postgres.run(
            "pg_basebackup", "-d", self.primary.address, "-D", self.standby.data, "-R", "-c", "fast", "--no-sync"
        )
        self._set(self.primary, "synchronous_standby_names", "*" if self._is_synchronous else "")
        self.standby.start()

    def kill_primary(self) -> None:
        """All of its processes at once, as a power cut does."""
        victims = self.primary.processes()
        for signal_ in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none outlives another to send more
            for process in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal_)

    def promote(self) -> None:
        """The standby becomes the primary, and waits for no other."""
        self.primary, self.standby = self.standby, self.primary
        self.primary.postgres.run("pg_ctl", "-D", self.primary.data, "-w", "promote")

    def stop(self) -> None:
        for one in (self.standby, self.primary):
            one.stop()

    def _set(self, server: Server, name: str, value: str) -> None:
        with psycopg.connect(server.address, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")


@contextlib.contextmanager
def pair(folder: Path, *, is_synchronous: bool) -> Iterator[Pair]:
    """Skips the test where there is no PostgreSQL to start."""
    made = Pair(folder, is_synchronous=is_synchronous)
    try:
        yield made
    finally:
        made.stop()
