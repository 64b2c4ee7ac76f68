"""A store of two servers, of which the second takes the first one's place."""

import os
import threading
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from sloserve.core.errors import StoreAway
from sloserve.fleet.store.postgres import PostgresDatabase, _tried_again, _without_password, _writable
from sloserve.fleet.store.records import DurableRequest, RequestState
from sloserve.fleet.store.store import open_store
from tests import bounded
from tests.fleet.store.databases import ADDRESS, suspended
from tests.fleet.store.replicated import pair


@pytest.mark.parametrize(
    ("address", "environment", "expected"),
    [
        ("postgresql://u@a,b/f", {}, {"target_session_attrs": "read-write"}),
        ("postgresql://u@a:1,b:2/f", {}, {"target_session_attrs": "read-write"}),
        ("postgresql:///f", {"PGHOST": "a,b"}, {"target_session_attrs": "read-write"}),
        ("postgresql://u@a,b/f?target_session_attrs=primary", {}, {}),
        ("postgresql://u@a,b/f", {"PGTARGETSESSIONATTRS": "primary"}, {}),
        ("postgresql://u@a/f", {}, {}),
    ],
)
def test_of_several_servers_the_store_is_the_one_that_may_be_written(
    address: str, environment: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGTARGETSESSIONATTRS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _writable(conninfo_to_dict(address)) == expected


def test_an_address_in_an_error_names_each_server_with_its_port() -> None:
    assert _without_password("postgresql://u:secret@a:1,b:2/f") == "postgresql://a:1,b:2/f"
    assert _without_password("postgresql://u:secret@a,b/f") == "postgresql://a:5432,b:5432/f"


class _GivenUp:
    """A pool that gave up connecting. waiting: statements that wait for a connection."""

    def __init__(self, waiting: int) -> None:
        self._waiting, self.tries = waiting, 0

    def get_stats(self) -> dict[str, int]:
        return {"requests_waiting": self._waiting} if self._waiting else {}  # as psycopg's, without what is 0

    def check(self) -> None:
        self.tries += 1


@pytest.mark.parametrize(("waiting", "tries"), [(0, 0), (2, 1)])
def test_a_pool_that_gave_up_begins_anew_where_statements_wait(waiting: int, tries: int) -> None:
    pool: Any = _GivenUp(waiting)
    _tried_again(pool)
    assert pool.tries == tries


@pytest.mark.slow
@pytest.mark.skipif(ADDRESS in os.environ, reason="NOT TESTED: the processes of a server elsewhere cannot be killed")
def test_no_accepted_line_is_lost_where_the_primary_dies_and_commits_wait_for_the_standby(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with pair(tmp_path_factory.mktemp("pair"), is_synchronous=True) as servers:
        store = open_store(servers.address)
        told: list[str] = []
        enough, killed, resumed, ends = (threading.Event() for _ in range(4))

        def accept() -> None:
            number = 0
            while not ends.is_set():
                line = DurableRequest(f"r{number:06}", "t", "m", "batch", 1, b"body", batch="b")
                try:
                    store.requests.accept([line])
                except StoreAway:
                    continue
                told.append(line.id)
                number += 1
                if number == 100:
                    enough.set()
                if killed.is_set():
                    resumed.set()

        writer = threading.Thread(target=accept)
        writer.start()
        try:
            assert enough.wait(30.0)
            servers.kill_primary()
            servers.promote()
            killed.set()
            assert resumed.wait(30.0), "the store that was promoted is not found"
        finally:
            ends.set()
            with bounded.within("the writer's last line"):
                writer.join()
        claim = store.requests.claim("a", 1, len(told) + 1, 30.0)
        assert claim is not None
        assert {request.id for request in claim.requests} >= set(told)
        assert store.requests.counts("b") == {RequestState.CLAIMED: len(claim.requests)}
        store.close()


@pytest.mark.slow
@pytest.mark.skipif(ADDRESS in os.environ, reason="NOT TESTED: the processes of a server elsewhere cannot be stopped")
def test_a_stopped_server_is_away_though_another_of_the_address_answers(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sloserve.fleet.store.postgres._SILENT_S", 60.0)
    with pair(tmp_path_factory.mktemp("pair"), is_synchronous=True) as servers:
        store = open_store(servers.address)
        store.members.beat("a", {})
        with suspended(servers.primary.folder):
            servers.promote()
            with pytest.raises(StoreAway, match="sent nothing for [23] s"):
                store.members.beat("a", {})
            for _ in range(3):  # the first connections may still be looked for at the one that is stopped
                try:
                    store.members.beat("b", {})
                    break
                except StoreAway:
                    continue
            assert "b" in {agent.id for agent in store.members.agents()}
        store.close()


@pytest.mark.slow
def test_a_connection_to_a_server_that_may_only_be_read_is_not_used_again(postgres_address: str) -> None:
    database = PostgresDatabase(postgres_address, connections=1)
    with database.transaction() as session:
        first = session.rows("SELECT pg_backend_pid()")
    with pytest.raises(StoreAway, match="read-only"), database.transaction() as session:
        session.change("SET TRANSACTION READ ONLY")  # as on one that has become a standby
        session.change("CREATE TABLE t (a int)")
    with database.transaction() as session:
        assert session.rows("SELECT pg_backend_pid()") != first
    database.close()
