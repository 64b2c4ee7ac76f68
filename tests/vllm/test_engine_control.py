"""Two engine ranks behind one client: each has a page, both answer, both change their policy under load."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.metrics.engine_page import find_pages, sweep_pages
from sloserve.vllm_plugin.server import engine_control, tiny_model
from sloserve.vllm_plugin.server.serve import TINY_ENVIRONMENT, TINY_FLAGS
from tests.forked import run_forked

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

RANKS, TOKENS = 2, 60


async def tokens_of(llm: Any, name: str) -> int:
    """How many tokens a request got."""
    from vllm import SamplingParams

    slo = {"slo_class": "batch", "slo_e2e_ms": 60000}
    # With a seed and a prompt longer than a step: vLLM's own CPU runner would die of it.
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.0, seed=3, extra_args=slo)
    tokens = 0
    async for reply in llm.generate("Tell me about the sea. " * 4, params, request_id=name):
        tokens = len(reply.outputs[0].token_ids)
    return tokens


async def until(condition: Callable[[], bool]) -> None:
    """Returns once ``condition``, about other processes, holds; the test fails if it does not within a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.to_thread(find_pages)


def none_left() -> bool:
    sweep_pages()
    return not find_pages()


async def served(llm: Any) -> None:
    requests = [asyncio.create_task(tokens_of(llm, f"r{i}")) for i in range(12)]
    await until(lambda: len(find_pages()) == RANKS and all(page.snapshot().steps > 0 for page in find_pages()))
    for text in ("fcfs", "sjf:length=oracle", "edf"):
        await engine_control.set_policies(llm, text)
        assert {page.snapshot().policy for page in find_pages()} == {text}
    await engine_control.set_policies(llm, shadow_policy="sjf")
    with pytest.raises(ConfigError, match="unknown policy 'nope'"):
        await engine_control.set_policies(llm, "fcfs", "nope")
    assert not all(request.done() for request in requests)  # the ranks changed under load
    assert await asyncio.gather(*requests) == [TOKENS] * 12
    status = await engine_control.status(llm)
    assert [(s["rank"], s["policy"], s["shadow_policy"]) for s in status] == [(0, "edf", "sjf"), (1, "edf", "sjf")]
    pages = [page.snapshot() for page in find_pages()]
    assert [page.rank for page in pages] == [0, 1]
    assert sum(page.enqueued_by_class["batch"] for page in pages) == 12
    assert sum(s["steps"] for s in status) > 0 and all(s["waiting_by_class"]["batch"] == 0 for s in status)


async def on_ranks() -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    flags = {name: value for name, value in TINY_FLAGS.items() if name != "served_model_name"}
    args = AsyncEngineArgs(
        model=tiny_model.resolve_model(tiny_model.NAME),
        scheduler_cls="sloserve.vllm_plugin.SLOScheduler",
        additional_config={"sloserve": {"policy": "edf"}},
        data_parallel_size=RANKS,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        **flags,
    )
    llm = AsyncLLM.from_engine_args(args)
    try:
        await served(llm)
    finally:
        llm.shutdown()
    await until(none_left)  # each took its own away, or was killed by vLLM after 5 s, which may outlive the call


def serve_on_ranks() -> None:
    asyncio.run(on_ranks())


def test_each_rank_has_a_page_and_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TINY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    run_forked(serve_on_ranks)
