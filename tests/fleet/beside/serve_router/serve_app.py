"""Two replicas on Ray Serve behind our router: ``python -m tests.fleet.beside.serve_router.serve_app FOLDER``.

A request says which file it waits for. The last line of standard output is what happened, as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from tests import bounded

ROUTER = "sloserve.fleet.beside.serve_router.router:SLORequestRouter"


@serve.deployment(
    num_replicas=2,
    max_ongoing_requests=2,
    ray_actor_options={"num_cpus": 0},
    request_router_config=RequestRouterConfig(
        request_router_class=ROUTER,
        request_router_kwargs={
            "hold_max_s": 600.0,
            "settings": {
                "classes": {"interactive": {"rank": 1, "e2e_ms": 1000}, "batch": {"rank": 2, "e2e_ms": 90_000}}
            },
        },
        request_routing_stats_period_s=1.0,
    ),
)
class Replica:
    """Serves a request once the file that it names is there."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._name = serve.get_replica_context().replica_id.unique_id

    async def __call__(self, request: dict[str, Any]) -> str:
        name = request["messages"][-1]["content"].split()[-1]
        (self._folder / f"began-{name}").write_text(self._name)
        while name != "now" and not (self._folder / name).exists():
            await asyncio.sleep(0.02)
        return self._name

    def record_routing_stats(self) -> dict[str, Any]:
        return {"model": "m", "running": 0, "waiting": 0}


def asked(turns: tuple[str, ...], slo_class: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text} for text in turns]
    return {"messages": messages, "vllm_xargs": {"slo_class": slo_class}}


class Scenes:
    def __init__(self, folder: Path, handle: Any) -> None:
        self._folder, self._handle = folder, handle

    def send(self, what: str, slo_class: str = "interactive", turns: tuple[str, ...] = ()) -> Any:
        return self._handle.remote(asked((*turns, what), slo_class))

    async def result(self, sent: Any) -> str:
        """Return a result, once the router knows of it as well, which it learns later than its caller."""
        name = str(await sent)
        await asyncio.sleep(0.3)
        return name

    async def began(self, name: str) -> str:
        while not (path := self._folder / f"began-{name}").exists() or not path.read_text():
            await asyncio.sleep(0.02)
        return path.read_text()

    async def busy_and_idle(self) -> list[str]:
        """Where six short requests go, and then where two with the busy replica's prefix go, while one is busy."""
        system = ("rules " * 5_000,)
        first = self.send("wait a", turns=system)
        busy = await self.began("a")
        went = [await self.result(self.send(f"{i} now")) for i in range(6)]
        went += [await self.result(self.send("now", turns=system)) for _ in range(2)]
        (self._folder / "a").touch()
        assert await first == busy
        return ["busy" if name == busy else "idle" for name in went]

    async def order(self) -> list[str]:
        """While both replicas are full, an urgent request passes one that came before it."""
        full = [self.send(f"wait b{i}") for i in range(4)]
        for i in range(4):
            await self.began(f"b{i}")
        late = self.send("wait late", "batch")
        await asyncio.sleep(0.5)  # it is on its way to the router
        soon = self.send("wait soon")
        await asyncio.sleep(0.5)
        began = [name for name in ("late", "soon") if (self._folder / f"began-{name}").exists()]
        (self._folder / "b0").touch()
        await self.began("soon")
        began += [name for name in ("late", "soon") if (self._folder / f"began-{name}").exists()]
        (self._folder / "soon").touch()
        await self.began("late")
        began.append("late")
        for name in ("b1", "b2", "b3", "late"):
            (self._folder / name).touch()
        await asyncio.gather(*full, late, soon)
        return began


async def main(folder: Path, handle: Any) -> dict[str, Any]:
    scenes = Scenes(folder, handle)
    return {
        "went": await scenes.busy_and_idle(),
        "order": await scenes.order(),
    }


if __name__ == "__main__":
    # Its own cluster, whatever others run on this machine, and no HTTP: other servers may have the port.
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    handle = serve.run(Replica.bind(sys.argv[1]), name="test")
    print(json.dumps(bounded.run(main(Path(sys.argv[1]), handle))), flush=True)
    serve.shutdown()
    ray.shutdown()
