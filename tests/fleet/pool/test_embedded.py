"""Agents of one machine when hosts come to the fleet's file, stay in it and leave it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sloserve.fleet.pool.embedded import EmbeddedPool
from sloserve.fleet.pool.keeper import AgentKeeper
from sloserve.fleet.pool.pool import Offer
from tests import bounded
from tests.bounded import until

pytestmark = pytest.mark.slow  # processes start and stop


def offers(*hosts: str) -> list[Offer]:
    return [Offer(host, "cpu", 1) for host in hosts]


def said(folder: Path, host: str) -> list[str]:
    with suppress(FileNotFoundError):
        return (folder / f"agent-{host}.log").read_text().split("\n")[:-1]
    return []


def kept(tmp_path: Path, test: Callable[[EmbeddedPool], Awaitable[None]]) -> None:
    """Run a test with a pool of agents of the hosts ``stays`` and ``leaves``, which a keeper keeps."""

    async def with_keeper() -> None:
        stub = "tests.fleet.pool.agent_stub"
        pool = EmbeddedPool(offers("stays", "leaves"), lambda host: [stub, "slow"], tmp_path, {})
        keeping = asyncio.create_task(AgentKeeper(pool, lambda line: None).run())
        try:
            await until(lambda: said(tmp_path, "stays") and said(tmp_path, "leaves"))
            await test(pool)
        finally:
            await pool.close(at_once=True)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    bounded.run(with_keeper())


def test_agents_of_hosts_that_stay_read_the_file_and_those_of_hosts_that_leave_end(tmp_path: Path) -> None:
    async def test(pool: EmbeddedPool) -> None:
        pool.follow(offers("stays", "comes"))
        await until(lambda: said(tmp_path, "stays") == ["started", "read again"])
        await until(lambda: said(tmp_path, "comes") == ["started"])
        await until(lambda: said(tmp_path, "leaves") == ["started", "ended"])
        pool.follow(offers("stays", "comes"))
        await until(lambda: said(tmp_path, "comes") == ["started", "read again"])
        assert "started" not in said(tmp_path, "leaves")[1:]

    kept(tmp_path, test)


def test_a_host_that_comes_back_while_its_agent_ends_gets_another(tmp_path: Path) -> None:
    async def test(pool: EmbeddedPool) -> None:
        pool.follow(offers("stays"))
        pool.follow(offers("stays", "leaves"))
        await until(lambda: said(tmp_path, "leaves")[-2:] == ["ended", "started"])
        pool.follow(offers("stays", "leaves"))
        await until(lambda: said(tmp_path, "leaves")[-1] == "read again")

    kept(tmp_path, test)


def test_agents_that_still_end_are_waited_for(tmp_path: Path) -> None:
    async def test(pool: EmbeddedPool) -> None:
        pool.follow(offers("stays"))
        await pool.close()
        assert said(tmp_path, "leaves") == ["started", "ended"] and said(tmp_path, "stays")[-1] == "ended"

    kept(tmp_path, test)


def test_a_fault_that_an_agent_finds_after_a_change_of_the_file_ends_no_fleet(tmp_path: Path) -> None:
    """The file was edited again while the agent of a new host started: the whole fleet ended."""

    async def test() -> None:
        pool = EmbeddedPool(offers(), lambda host: ["tests.fleet.pool.agent_stub", "2"], tmp_path, {})
        pool.follow(offers("comes"))
        (offer,) = (await pool.offers()).values()
        await pool.ensure(offer)
        gone = await pool.gone()
        assert (gone.host, gone.certain) == ("comes", True) and gone.what.startswith("has ended with status 2")
        await pool.close()

    bounded.run(test())
