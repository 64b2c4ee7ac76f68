"""The two databases that the conformance suite runs on, each with a clock that the test moves."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from sloserve.core.clock import ManualClock
from sloserve.fleet.store.database import Database
from sloserve.fleet.store.postgres import PostgresDatabase
from sloserve.fleet.store.sqlite import SqliteDatabase
from tests.ports import free_port

ADDRESS = "SLOSERVE_TEST_POSTGRES"
"""Environment variable: address of a server to test on, instead of one that is started for the tests."""


@dataclass
class Store:
    """A database that the test opens as often as it likes. pass_s: lets time pass on the store's clock."""

    open: Callable[[], Database]
    pass_s: Callable[[float], None]


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Store]:
    clock, opened = ManualClock(), list[Database]()

    def open_() -> Database:
        opened.append(SqliteDatabase(folder / "store.sqlite", clock))
        return opened[-1]

    yield Store(open_, lambda seconds: clock.set_wall(clock.now_s() + seconds))
    for database in opened:
        database.close()


@contextlib.contextmanager
def postgres(address: str, schema: str) -> Iterator[Store]:
    opened = list[PostgresDatabase]()
    passed_s = 0.0

    def open_() -> Database:
        opened.append(PostgresDatabase(address, connections=3, schema=schema))
        if passed_s:
            pass_s(0.0)
        return opened[-1]

    def pass_s(seconds: float) -> None:
        nonlocal passed_s
        passed_s += seconds
        with opened[-1].alone() as session:
            session.change(
                "CREATE OR REPLACE FUNCTION store_now() RETURNS double precision LANGUAGE sql VOLATILE "
                f"AS 'SELECT extract(epoch FROM clock_timestamp())::double precision + {passed_s}'"
            )

    yield Store(open_, pass_s)
    for database in opened:
        database.close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@contextlib.contextmanager
def suspended(folder: Path) -> Iterator[None]:
    """Stops every process of the server that :func:`server` started in ``folder``; none of them ends."""
    postmaster = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGSTOP)  # first: it makes no others then
    backends = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    stopped = [postmaster, *map(int, backends)]
    for process in stopped:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


@dataclass(frozen=True)
class Installed:
    """PostgreSQL on this machine. as_user: begins a command that it runs, since it refuses root."""

    programs: Path
    as_user: tuple[str, ...] = ()

    def run(self, program: str, *arguments: str | Path, check: bool = True) -> None:
        command = [*self.as_user, self.programs / program, *arguments]
        subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


def installed(folder: Path) -> Installed:
    """With ``folder`` made its own. Skips the test where there is none."""
    found = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None:
        pytest.skip("NOT TESTED: PostgreSQL is not installed (Debian: apt install postgresql)")
    programs = Path(found).resolve().parent
    if os.geteuid() != 0:
        return Installed(programs)
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("NOT TESTED: PostgreSQL does not run as root, and there is no user postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    for parent in folder.parents[:4]:  # pytest's own and one of the test's, which only root may enter
        parent.chmod(parent.stat().st_mode | 0o011)
    as_user = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    return Installed(programs, as_user)


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server in ``folder``, of the superuser ``sloserve``."""

    postgres: Installed
    folder: Path
    port: int

    @property
    def address(self) -> str:
        return f"postgresql://sloserve@127.0.0.1:{self.port}/postgres"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def initialize(self) -> None:
        self.postgres.run("initdb", "-D", self.data, "-U", "sloserve", "--auth=trust", "--no-sync")

    def start(self) -> None:
        """Waits until it takes connections."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -c unix_socket_directories=''"
        self.postgres.run("pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "-o", options, "start")

    def stop(self) -> None:
        self.postgres.run("pg_ctl", "-D", self.data, "-w", "-m", "immediate", "stop", check=False)

    def processes(self) -> list[int]:
        """The first makes the others."""
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        return [postmaster, *map(int, Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split())]


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a PostgreSQL server. Skips the test where there is none to start."""
    if ADDRESS in os.environ:
        yield os.environ[ADDRESS]
        return
    made = Server(installed(folder), folder, free_port())
    made.initialize()
    made.start()
    try:
        yield made.address
    finally:
        made.stop()
