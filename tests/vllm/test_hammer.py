"""A minute of everything at once: every reply equals stock vLLM's, whatever happens to the server meanwhile.

Seeds, several choices, stop strings, penalties, log probabilities, grammars and chats, with and without targets, in
streams and whole, sent in parts; four in ten streams end by a client that leaves. KV is scarce, and the swap space
holds a part of it. Meanwhile the policy changes, and the engine is parked and woken. Stock gets the same requests.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.servers import ONE_THREAD, plain_vllm_command, served
from sloserve.scheduler.registry import main_policies
from tests import bounded
from tests.ports import free_port
from tests.vllm.hammer import Reply, Sent, difference, requests, send_all
from tests.vllm.server import ADMIN_KEY, MODEL, Server, samples

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.whole]

SCARCE = ["--block-size", "32", "--num-gpu-blocks-override", "41", "--max-num-seqs", "12", "--max-model-len", "1024"]
POLICIES = main_policies()
REQUESTS, AT_ONCE = 600, 40
STOCK_AT_ONCE = 8
STOCK_FLAGS = ["--max-num-batched-tokens", "16384"]
"""A step has room for all prompts that may wait: stock's CPU engine dies of a seeded prompt that it cuts."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, list[Sent]]]:
    """Our server, stock's URL, and the requests. None names an adapter: the LoRA kernels of vLLM's CPU engine end it
    where the log probabilities of a prompt are asked for, see docs/upstream.md."""
    swap = ["--policy", "auto", "--swap-space-gib", "0.01", "--swapping", "always"]
    ours = Server(*swap, *SCARCE, env={"SLOSERVE_ADMIN_KEY": ADMIN_KEY})
    log = tmp_path_factory.mktemp("stock") / "log"
    try:
        ours.wait_ready()
        with served([*plain_vllm_command(), *STOCK_FLAGS], free_port(), log, VLLM_PLUGINS="", **ONE_THREAD) as stock:
            yield ours, stock, requests(REQUESTS, 7, [MODEL])
    finally:
        if ours.process.poll() is None:
            ours.stop()


async def disturb(url: str, done: asyncio.Event) -> Counter[str]:
    """Changes the policy and parks the engine by turns until ``done``; returns how often."""
    counts: Counter[str] = Counter()
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as admin:
        for policy in itertools.cycle(POLICIES):
            if done.is_set():
                return counts
            (await admin.put("/sloserve/policy", json={"policy": policy})).raise_for_status()
            counts[policy] += 1
            await _pass(done, 1.0)
            if counts[policy] % 2:
                (await admin.post("/sloserve/park", json={"level": 0})).raise_for_status()
                (await admin.post("/sloserve/unpark")).raise_for_status()
                counts["parks"] += 1


async def _pass(done: asyncio.Event, seconds: float) -> None:
    """Until ``done``, for ``seconds`` at most."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done.wait(), seconds)


async def both(ours: str, stock: str, sent: list[Sent]) -> tuple[list[Reply], list[Reply], Counter[str]]:
    expected = await send_all(stock, sent, STOCK_AT_ONCE, asyncio.Event())
    done = asyncio.Event()
    got, counts = await asyncio.gather(send_all(ours, sent, AT_ONCE, done), disturb(ours, done))
    return expected, got, counts


@pytest.mark.timeout(900)  # eighty seconds where nothing else runs
def test_every_reply_is_stock_vllms(world: tuple[Server, str, list[Sent]]) -> None:
    server, stock, sent = world
    try:
        expected, got, counts = bounded.run(both(server.url, stock, sent), 840.0)
    except httpx.HTTPError as error:
        pytest.fail(f"{error!r}\n" + "".join(server.log[-60:]))
    assert [reply.error for reply in expected if reply.status != 200 or reply.error] == []
    differences = {
        f"{number}, {request.kind}": text
        for number, (request, one, other) in enumerate(zip(sent, expected, got, strict=True))
        if (text := difference(request, one, other)) is not None
    }
    assert differences == {}, f"{len(differences)} of {len(sent)}"
    # It was hammered indeed.
    preemptions = sum(samples(server, "sloserve:preemptions_total").values())
    print(f"{dict(counts)}, {preemptions:.0f} preemptions")
    assert counts["parks"] > 3 and preemptions > 20
    assert set(samples(server, "sloserve:internal_errors_total").values()) == {0.0}
    assert server.engine_pids() != []
