"""A picker before a real server of vLLM: the names of its metrics, and its models, are those that are read."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sloserve.fleet.beside.endpoint_picker.picker_file import read_picker
from sloserve.fleet.beside.endpoint_picker.picker_server import PickerServer
from sloserve.fleet.beside.server_figures import ServerFigures, read_figures
from tests import bounded
from tests.bounded import until
from tests.fleet.beside.endpoint_picker.played_envoy import chat, envoy
from tests.vllm.server import MODEL, Server, complete

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

OUTPUT_TOKENS = 24


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server("--max-num-seqs", "4", "--enable-prefix-caching")
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop()


def figures(server: Server) -> ServerFigures:
    found = read_figures(server.metrics())
    assert found is not None
    return found


def test_its_metrics_have_all_figures(server: Server) -> None:
    before = figures(server)
    assert (before.model, before.requests, before.context_tokens) == (MODEL, 0, 0.0), "it says how large its cache is"
    prompt = "The sea is wide and deep, and nobody has seen its ground. " * 8
    with httpx.Client(base_url=server.url, timeout=120) as http:
        for _ in range(3):
            complete(http, prompt)
    now = figures(server).totals
    assert now.prompts == now.outputs == 3 and now.output_tokens == 3 * OUTPUT_TOKENS
    assert now.prompt_tokens / 3 > 20 and 0 < now.hit_tokens < now.queried_tokens


def test_running_requests_are_counted_and_a_picker_names_the_server(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "picker.yaml"
    address = f"127.0.0.1:{server.port}"
    path.write_text(f"servers: {{addresses: ['{address}'], sample_s: 0.05}}\nlisten: {{port: 0}}\n")

    async def main() -> tuple[str, int]:
        picker = PickerServer(read_picker(path))
        await picker.start()
        try:
            await until(lambda: address in picker.picking.instances.by_name)
            await until(lambda: MODEL in picker.picking.servers.eligible(MODEL, None).models)
            instance = picker.picking.instances.by_name[address]
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                body = {"model": MODEL, "prompt": "The sea", "max_tokens": 400, "ignore_eos": True}
                running = [asyncio.create_task(http.post("/v1/completions", json=body)) for _ in range(6)]
                await until(lambda: instance.report.running.requests == 6)
                used = instance.report.running.context_tokens
                async with envoy(picker.port) as make:
                    seen = await make().ask(chat(model=MODEL))
                for one in await asyncio.gather(*running):
                    one.raise_for_status()
            return seen.server, int(used)
        finally:
            await picker.stop(0.0)

    name, used = bounded.run(main())
    assert name == address and used > 0
