"""deploy/postgres/roles.sql: who runs the fleet changes rows, and never a table."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError
from sloserve.fleet.store.records import DurableRequest, RequestState, Result, StoredPlan
from sloserve.fleet.store.store import Store, open_store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy/postgres/roles.sql"


@pytest.fixture
def addresses(postgres_address: str) -> Iterator[dict[str, str]]:
    """Of a new database, by the role that connects: ``sloserve`` is the superuser."""
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute("CREATE DATABASE roles")
    base = postgres_address.removesuffix("/postgres") + "/roles"
    users = ("sloserve", "sloserve_owner", "sloserve_member")
    yield {user: base.replace("sloserve@", f"{user}@") for user in users}
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute("DROP DATABASE roles WITH (FORCE)")
        for user in users[1:]:
            connection.execute(f"DROP ROLE IF EXISTS {user}")


def run_script(addresses: dict[str, str]) -> None:
    with psycopg.connect(addresses["sloserve"], autocommit=True) as connection:
        connection.execute(SCRIPT.read_bytes())


def serve_one(store: Store) -> None:
    """What a gateway, an agent and a planner do to rows."""
    assert store.requests.accept([DurableRequest("r1", "t", "m", "batch", 1, b"{}", batch="b")]) == 1
    claim = store.requests.claim("a", 1, 5, 30.0)
    assert claim is not None
    assert store.requests.finish([Result("r1", claim.requests[0].attempt, RequestState.DONE, 200, b"[]")]) == [True]
    assert [row.body for row in store.requests.results("b")] == [b"[]"]
    store.members.beat("a", {})
    assert store.members.take_host("h", "one", "place", 30.0).taken
    term = store.members.lead("p", 5.0)
    assert term is not None
    assert store.members.write_plan("p", StoredPlan(term, 1, {}))
    assert store.files_mark("mark") == "mark"
    assert store.requests.forget("b") == 1


def test_a_member_serves_what_the_owner_made_and_changes_no_table(addresses: dict[str, str], tmp_path: Path) -> None:
    run_script(addresses)
    with pytest.raises(
        ConfigError, match="cannot be set up: permission denied.*sloserve fleet upgrade FILE.*owns.*GRANT CREATE"
    ):
        open_store(addresses["sloserve_member"])

    upgraded = CliRunner().invoke(
        app,
        ["fleet", "upgrade", str(ROOT / "configs/fleet-tiny.yaml"), "--state", str(tmp_path)],
        env={"SLOSERVE_FLEET_STORE": addresses["sloserve_owner"]},
    )
    assert upgraded.exit_code == 0, upgraded.output
    store = open_store(addresses["sloserve_member"])
    serve_one(store)
    store.close()

    with psycopg.connect(addresses["sloserve_member"], autocommit=True) as member:
        for statement in (
            "CREATE TABLE other (a int)",
            "ALTER TABLE request ADD COLUMN other int",
            "DROP TABLE request",
            "TRUNCATE request",
            "CREATE OR REPLACE FUNCTION store_now() RETURNS double precision LANGUAGE sql AS 'SELECT 0.0::float8'",
            "CREATE SCHEMA other",
            "CREATE TEMPORARY TABLE other (a int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                member.execute(statement)


def test_a_store_that_was_made_before_is_handed_over(addresses: dict[str, str]) -> None:
    before = open_store(addresses["sloserve"])
    before.members.beat("old", {})
    run_script(addresses)
    run_script(addresses)
    store = open_store(addresses["sloserve_member"])
    assert [agent.id for agent in store.members.agents()] == ["old"]
    serve_one(store)
    store.close()
    before.close()
    with psycopg.connect(addresses["sloserve_owner"], autocommit=True) as owner:
        owner.execute("ALTER TABLE request ADD COLUMN a_later_step int")  # as an upgrade does
