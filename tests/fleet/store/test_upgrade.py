"""A store of an older schema is upgraded while a gateway of that version goes on."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sloserve.fleet.store.migrations import STEPS
from sloserve.fleet.store.records import RequestState, Result
from sloserve.fleet.store.store import open_store
from tests import bounded

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
OLD = "befff5e6"
"""A commit whose store has schema version 4."""


@pytest.fixture
def old_tree(tmp_path: Path) -> Path:
    archive = subprocess.run(
        ["git", "archive", OLD, "sloserve"], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    if archive.returncode:
        pytest.skip(f"NOT TESTED: this clone has no commit {OLD}")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=archive.stdout, check=True, timeout=60)
    return tmp_path


@pytest.fixture
def address(postgres_address: str) -> Iterator[str]:
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute("CREATE DATABASE upgraded")
    yield postgres_address.removesuffix("/postgres") + "/upgraded"
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute("DROP DATABASE upgraded WITH (FORCE)")


def test_an_old_gateway_goes_on_through_an_upgrade_and_nothing_is_lost(old_tree: Path, address: str) -> None:
    program = [sys.executable, Path(__file__).with_name("old_gateway.py"), old_tree, address]
    with (
        bounded.within("both halves of the old gateway's work"),
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as old,
    ):
        assert old.stdin is not None and old.stdout is not None
        assert old.stdout.readline() == "half\n"
        store = open_store(address)
        with store.database.reading() as session:
            assert session.rows("SELECT version FROM schema_version") == [(len(STEPS),)]
        old.stdin.write("go on\n")
        old.stdin.flush()
        assert old.stdout.readline() == "done\n"
    assert old.returncode == 0

    claim = store.requests.claim("new", 1, 10, 30.0)
    assert claim is not None and [one.id for one in claim.requests] == ["left-0", "left-1", "left-2"]
    results = [Result(one.id, one.attempt, RequestState.DONE, 200, b"y") for one in claim.requests]
    assert store.requests.finish(results) == [True] * 3
    for batch in ("before", "after", "left"):
        assert [(row.id, row.state) for row in store.requests.results(batch)] == [
            (f"{batch}-{i}", RequestState.DONE) for i in range(3)
        ]
    counted = {batch.id: (batch.lines, batch.completed, batch.failed) for batch in store.batches.list("t")}
    assert counted == {"before": (3, 3, 0), "after": (3, 3, 0)}
    store.batches.recount_bytes()
    assert store.batches.bytes_of("t") == 20_000
    assert store.batches.delete_file("t", "in-after")
    assert store.batches.delete_file("t", "in-before")
    assert store.batches.bytes_of("t") == 0
    store.close()
