"""Where a store may lie, and what it says when it cannot be reached or is full."""

import contextlib
import os
import re
import sqlite3
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from sloserve.core.errors import ConfigError, StoreAway, StoreFull
from sloserve.fleet.store.postgres import PostgresDatabase, _verified
from sloserve.fleet.store.records import DurableRequest
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store as OpenStore
from sloserve.fleet.store.store import open_store
from tests.fleet.store import databases


def mounts(tmp_path: Path, kind: str) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"90 22 0:44 / {tmp_path} rw,relatime shared:2 - {kind} server:/share rw\n"
    )
    return file


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind}.*local disk.*postgresql://"):
        SqliteDatabase(tmp_path / "store.sqlite", mounts=mounts(tmp_path, kind))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "tmpfs"])
def test_a_local_one_is_not(tmp_path: Path, kind: str) -> None:
    SqliteDatabase(tmp_path / "store.sqlite", mounts=mounts(tmp_path, kind)).close()


@pytest.mark.parametrize("name", ["a b", "\u00e9", "\u2028", "\udcff"])
def test_a_mount_point_may_have_any_name(tmp_path: Path, name: str) -> None:
    point = tmp_path / name
    point.mkdir()
    written = re.sub(rb"[ \t\n\\]", lambda byte: b"\\%03o" % ord(byte[0]), os.fsencode(point))
    file = tmp_path / "mountinfo"
    file.write_bytes(b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n90 22 0:44 / %b rw - nfs4 server:/share rw\n" % written)
    with pytest.raises(ConfigError, match="nfs4"):
        SqliteDatabase(point / "store.sqlite", mounts=file)


def test_an_address_that_is_none_says_what_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'redis' is not a kind of store; give sqlite:PATH or postgresql://"):
        open_store("redis://localhost")
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_store(f"sqlite:{tmp_path}/missing/store.sqlite")
    (tmp_path / "text").write_text("this is no database, " * 100)
    with pytest.raises(ConfigError, match="cannot be opened.*not a database"):
        open_store(f"sqlite:{tmp_path}/text")


def test_only_its_owner_reads_what_stands_in_the_store(tmp_path: Path) -> None:
    """Its folder may be one that others enter."""
    store = open_store(f"sqlite:{tmp_path / 'store.sqlite'}")
    store.members.beat("a", {})
    found = {file.name: file.stat().st_mode & 0o077 for file in tmp_path.iterdir()}
    store.close()
    assert len(found) == 3 and not any(found.values())


def test_an_address_in_an_error_has_no_password() -> None:
    with pytest.raises(ConfigError, match="127.0.0.1:1/db cannot be reached") as raised:
        open_store("postgresql://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(raised.value)


def test_a_full_disk_keeps_nothing_of_what_it_refuses(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.sqlite")
    store = OpenStore(database)
    with database.transaction() as session:
        (pages,) = session.rows("PRAGMA page_count")[0]
        session.rows(f"PRAGMA max_page_count = {pages + 8}")
    big = [DurableRequest(f"r{i}", "t", "m", "batch", 1, bytes(5000), batch="b") for i in range(30)]
    with pytest.raises(StoreFull, match="is full.*free some"):
        store.requests.accept(big)
    assert store.requests.counts("b") == {}
    assert store.requests.accept(big[:2]) == 2
    store.close()


def test_a_store_that_another_writer_holds_is_away_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sloserve.fleet.store.sqlite._BUSY_S", 0.02)
    store = OpenStore(SqliteDatabase(tmp_path / "store.sqlite"))
    other = sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreAway, match="does not respond.*locked"):
        store.members.beat("a", {})
    assert store.members.agents() == []  # readers need not wait
    other.execute("ROLLBACK")
    store.members.beat("a", {})
    other.close()
    store.close()


@pytest.mark.slow
def test_a_connection_whose_other_end_is_gone_is_noticed_within_a_minute(postgres_address: str) -> None:
    for address, limit in ((postgres_address, "25000"), (f"{postgres_address}?tcp_user_timeout=7000", "7000")):
        database = PostgresDatabase(address)
        with database._pool.connection() as connection:
            stated = connection.info.get_parameters()
            assert stated["tcp_user_timeout"] == limit and stated["keepalives_idle"] == "10"
        database.close()


@pytest.mark.slow
def test_a_server_that_is_stopped_but_not_dead_is_away_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel acknowledges what it is sent, so that TCP sees nothing, and it ends no statement itself."""
    if databases.ADDRESS in os.environ:
        pytest.skip("NOT TESTED: the processes of a server elsewhere cannot be stopped")
    for limit in ("_PROBE_S", "_CONNECT_S"):
        monkeypatch.setattr(f"sloserve.fleet.store.postgres.{limit}", 0.5)
    folder = tmp_path_factory.mktemp("stopped")
    with databases.server(folder) as address:
        store = open_store(address)
        store.members.beat("a", {})
        with databases.suspended(folder):
            for _ in range(2):  # on a connection that is open, then without one
                with pytest.raises(StoreAway, match="does not respond"):
                    store.members.beat("b", {})
        for _ in range(100):
            with contextlib.suppress(StoreAway):
                store.members.beat("b", {})
                break
        assert {agent.id for agent in store.members.agents()} == {"a", "b"}
        store.close()


@pytest.mark.slow
def test_a_server_that_takes_long_for_a_statement_is_not_away(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sloserve.fleet.store.postgres._PROBE_S", 0.2)
    database = PostgresDatabase(postgres_address)
    with database.transaction() as session:
        session.rows("SELECT pg_sleep(1.0)")
        assert session.rows("SELECT 1") == [(1,)]
    database.close()


@pytest.mark.slow
def test_a_server_that_lets_nothing_be_written_says_so(postgres_address: str) -> None:
    database = PostgresDatabase(postgres_address)
    with pytest.raises(StoreAway, match="read-only"), database.transaction() as session:
        session.change("SET TRANSACTION READ ONLY")  # as on one that has become a standby
        session.change("CREATE TABLE t (a int)")
    database.close()


@pytest.mark.parametrize(
    ("address", "environment", "expected"),
    [
        ("postgresql://u@db.example/f", {}, {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("postgresql://u@10.0.0.7/f", {}, {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("postgresql://u@127.0.0.1,db.example/f", {}, {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("postgresql://u@/f", {"PGHOST": "db.example"}, {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("postgresql://u@db.example/f?sslrootcert=/ca.crt", {}, {"sslmode": "verify-full"}),
        ("postgresql://u@db.example/f", {"PGSSLROOTCERT": "/ca.crt"}, {"sslmode": "verify-full"}),
        ("postgresql://u@db.example/f?sslmode=require", {}, {}),
        ("postgresql://u@db.example/f", {"PGSSLMODE": "disable"}, {}),
        ("postgresql:///f?service=fleet", {"PGHOST": "db.example"}, {}),
        ("postgresql://u@localhost/f", {}, {}),
        ("postgresql://u@[::1],127.0.0.2/f", {}, {}),
        ("postgresql:///f?host=/var/run/postgresql", {}, {}),
        ("postgresql:///f", {}, {}),
    ],
)
def test_a_server_on_another_host_must_show_a_certificate_unless_told(
    address: str, environment: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PGHOST", "PGSSLMODE", "PGSSLROOTCERT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _verified(conninfo_to_dict(address)) == expected


@pytest.mark.slow
def test_a_server_without_tls_on_another_host_is_refused_with_the_remedy(postgres_address: str) -> None:
    named = postgres_address.replace("127.0.0.1", "db.example") + "?hostaddr=127.0.0.1"
    assert named != postgres_address
    with pytest.raises(ConfigError, match="cannot be reached: .*SSL.*sslmode=require or disable"):
        PostgresDatabase(named)
    PostgresDatabase(f"{named}&sslmode=disable").close()


def test_a_user_without_a_home_verifies_servers_by_the_systems_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.fleet.store.postgres.home", lambda: None)
    assert _verified({"host": "db.example"}) == {"sslmode": "verify-full", "sslrootcert": "system"}
