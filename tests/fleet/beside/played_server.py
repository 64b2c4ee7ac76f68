"""A server of vLLM as an endpoint picker sees it: its metrics and the names of its models, which a test sets."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web


def metrics_page(
    model: str = "m", running: int = 0, waiting: int = 0, used: float = 0.0, ended: int = 10, engines: int = 1
) -> str:
    """Return lines as vLLM writes them: ended requests had 800 tokens of prompt and 100 of output."""
    lines = ["# HELP vllm:num_requests_running Number of requests in model execution batches."]
    for engine in range(engines):
        labels = f'engine="{engine}",model_name="{model}"'
        lines += [
            f"vllm:num_requests_running{{{labels}}} {float(running)}",
            f"vllm:num_requests_waiting{{{labels}}} {float(waiting)}",
            f'vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} {float(waiting)}',
            f"vllm:kv_cache_usage_perc{{{labels}}} {used}",
            f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="1000"}} 1.0',
            f"vllm:prefix_cache_queries_total{{{labels}}} {ended * 800.0}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {ended * 200.0}",
            f'vllm:request_prompt_tokens_bucket{{{labels},le="1.0"}} 0.0',
            f"vllm:request_prompt_tokens_sum{{{labels}}} {ended * 800.0}",
            f"vllm:request_prompt_tokens_count{{{labels}}} {float(ended)}",
            f"vllm:request_generation_tokens_sum{{{labels}}} {ended * 100.0}",
            f"vllm:request_generation_tokens_count{{{labels}}} {float(ended)}",
        ]
    return "\n".join(lines) + "\n"


@dataclass
class PlayedServer:
    """One server; ``asked`` counts the questions for its metrics."""

    model: str = "m"
    running: int = 0
    waiting: int = 0
    adapters: list[str] = field(default_factory=list)
    page: str | None = None
    asked: int = 0
    address: str = ""

    async def metrics(self, request: web.Request) -> web.Response:
        self.asked += 1
        page = metrics_page(self.model, self.running, self.waiting) if self.page is None else self.page
        return web.Response(text=page)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in (self.model, *self.adapters)]})


@contextlib.asynccontextmanager
async def serving(*servers: PlayedServer) -> AsyncIterator[None]:
    """Serve each of them on a port of its own, and set its address."""
    runners = []
    try:
        for server in servers:
            app = web.Application()
            app.add_routes([web.get("/metrics", server.metrics), web.get("/v1/models", server.models)])
            runner = web.AppRunner(app)
            runners.append(runner)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            server.address = f"127.0.0.1:{runner.addresses[0][1]}"
        yield
    finally:
        for runner in runners:
            await runner.cleanup()
