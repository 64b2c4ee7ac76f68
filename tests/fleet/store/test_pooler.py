"""The store behind PgBouncer, which gives each transaction any of its connections (``pool_mode = transaction``)."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from sloserve.core.errors import StoreAway
from sloserve.fleet.store.postgres import CONNECTIONS, PostgresDatabase
from sloserve.fleet.store.records import DurableRequest, RequestState, Result, StoredPlan
from sloserve.fleet.store.store import Store, open_store
from tests import bounded
from tests.fleet.store.databases import Server, installed
from tests.ports import free_port

pytestmark = pytest.mark.slow
_SETTINGS = """
[databases]
postgres = host=127.0.0.1 port={server} user=sloserve
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = transaction
default_pool_size = 2
unix_socket_dir =
"""


@pytest.fixture(scope="module")
def pooler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a pooler with two connections to a server of its own."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("NOT TESTED: PgBouncer is not installed (Debian: apt install pgbouncer)")
    folder = tmp_path_factory.mktemp("pooler")
    server = Server(installed(folder), folder, free_port())
    settings, port = folder / "pgbouncer.ini", free_port()
    settings.write_text(_SETTINGS.format(server=server.port, port=port))
    server.initialize()
    server.start()
    process = subprocess.Popen(
        [*server.postgres.as_user, program, settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"postgresql://sloserve@127.0.0.1:{port}/postgres"
    try:
        _answers(address)
        yield address
    finally:
        process.terminate()
        process.wait(10)
        server.stop()


def _answers(address: str) -> None:
    with bounded.within("PgBouncer's first response"):
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(address).close()
                return


def _uses(store: Store, agent: str) -> int:
    """Uses each kind of statement more often than a client of PostgreSQL waits to prepare it; returns results."""
    counted = 0
    for round in range(12):
        ids = [f"{agent}.{round}.{i}" for i in range(3)]
        store.requests.accept(
            [DurableRequest(id, "t", "m", "batch", 1, b"\x00\xff", deadline_s=60.0, batch="b") for id in ids]
        )
        claim = store.requests.claim(agent, 1, 3, 30.0)
        if claim is not None:
            store.requests.renew(agent, 30.0)
            counted += sum(
                store.requests.finish([Result(r.id, r.attempt, RequestState.DONE, 200, b"{}") for r in claim.requests])
            )
        store.members.beat(agent, {"round": round})
        if store.members.lead(agent, 5.0) is not None:
            store.members.write_plan(agent, StoredPlan(1, round, {"agent": agent}))
        store.members.plan()
        store.members.agents()
        store.requests.sums()
        store.requests.cancel("another")
        with store.database.alone() as session:
            assert session.rows("SELECT 1") == [(1,)]
    return counted


def test_every_statement_works_on_whichever_connection_it_meets(pooler: str) -> None:
    stores = [open_store(pooler) for _ in range(3)]
    with bounded.within("all rounds of three members"), ThreadPoolExecutor(len(stores)) as threads:
        counted = sum(threads.map(_uses, stores, ("a", "b", "c")))
    last = stores[0].requests.claim("last", 1, 200, 30.0)
    assert counted + (0 if last is None else len(last.requests)) == 3 * 12 * 3
    assert stores[0].requests.counts("b")[RequestState.DONE] == counted
    for store in stores:
        store.close()


def test_a_member_holds_two_connections_at_most(postgres_address: str) -> None:
    with psycopg.connect(postgres_address, autocommit=True) as watcher:
        database = PostgresDatabase(f"{postgres_address}?application_name=counted")

        def look(_: int) -> int:
            with database.reading() as session:
                session.rows("SELECT pg_sleep(0.02)")
                sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
                return int(session.rows(sql)[0][0])

        with bounded.within("ten threads that share the connections"), ThreadPoolExecutor(10) as threads:
            assert max(threads.map(look, range(40))) == CONNECTIONS == 2
        database.close()
        assert watcher.execute("SELECT 1").fetchone() == (1,)


def test_a_store_that_has_lost_its_tables_is_away(postgres_address: str) -> None:
    database = PostgresDatabase(postgres_address)
    with pytest.raises(StoreAway, match="lacks what a member has made in it: relation"), database.reading() as session:
        session.rows("SELECT 1 FROM request_that_was_lost")
    database.close()
