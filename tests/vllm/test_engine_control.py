"""Engines that are asked from the API process: ranks change their policy under load, and a reload loses no request."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from sloserve.core.errors import ConfigError
from sloserve.engine.metrics.engine_page import find_pages, sweep_pages
from sloserve.vllm_plugin.server import engine_control, reloading, tiny_model
from sloserve.vllm_plugin.server.serve import TINY_ENVIRONMENT, TINY_FLAGS
from tests import bounded
from tests.bounded import until
from tests.forked import run_forked
from tests.other_vllm import needs_numa_node_of_each_rank

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


async def reloaded(llm: Any) -> None:
    """Reload the weights while a request runs, and send another one once the engine is paused."""
    read, has_come = reloading._read, asyncio.Event()

    async def read_when_it_has_come(*arguments: Any) -> str:
        await has_come.wait()
        return await read(*arguments)

    weights = tiny_model.resolve_model(tiny_model.NAME)
    models = SimpleNamespace(base_model_paths=[SimpleNamespace(name="old", model_path=weights)])
    running = asyncio.create_task(tokens_of(llm, "running"))
    await until(lambda: any(page.snapshot().steps > 0 for page in find_pages()))
    with patch.object(reloading, "_read", read_when_it_has_come):
        reload = asyncio.create_task(reloading.reload(llm, models, weights, "new"))
        while not await llm.is_paused():
            await asyncio.sleep(0)
        late = asyncio.create_task(tokens_of(llm, "late"))
        while not any(name.startswith("late") for name in llm.output_processor.request_states):
            await asyncio.sleep(0)
        assert await llm.is_paused()  # the engine has answered after the request came to it
        has_come.set()
        await reload
    assert [one.name for one in models.base_model_paths] == ["new"]
    assert [await running, await late] == [TOKENS, TOKENS]


async def on_one_engine() -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    flags = {name: value for name, value in TINY_FLAGS.items() if name != "served_model_name"}
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=tiny_model.resolve_model(tiny_model.NAME),
            scheduler_cls="sloserve.vllm_plugin.SLOScheduler",
            additional_config={"sloserve": {"policy": "edf"}},
            **flags,
        )
    )
    try:
        await reloaded(llm)
    finally:
        llm.shutdown()


def reload_on_one_engine() -> None:
    bounded.run(on_one_engine(), 200.0)


def test_requests_that_come_during_a_reload_are_served_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0.33 on vLLM's own pause answers them with 503."""
    pytest.importorskip("vllm.model_executor.model_loader.reload.inplace", reason="the worker reloads as 0.32 does")
    for name, value in TINY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    run_forked(reload_on_one_engine)


def serve_on_ranks() -> None:
    bounded.run(on_ranks(), 200.0)


def test_each_rank_has_a_page_and_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_numa_node_of_each_rank(2)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    for name, value in TINY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    run_forked(serve_on_ranks)
