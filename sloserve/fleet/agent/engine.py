"""One engine under an agent: its process, what it holds, and the control calls that change that.

Every call raises EngineError if the engine fails it, or is late; the engine's state is unknown then, and the caller
must kill it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sloserve.core.errors import EngineError
from sloserve.fleet.agent.engine_client import EngineClient, EngineLate
from sloserve.fleet.agent.engine_requests import AwaitedRequests
from sloserve.fleet.agent.engine_spec import EngineModel, EngineProcess
from sloserve.fleet.contract.engine_places import EnginePlaces

_READY_POLL_S: Final = 0.05
_STEPS: Final = 10.0
"""Number of its longest steps for which an engine may be silent."""
_HEALTH_S: Final = 5.0
CANARY: Final[Mapping[str, Any]] = {
    "prompt": "The capital of France is",
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Most seconds that an engine may take before it is killed.

    Args:
        start_s: Seconds until it responds.
        control_s: Seconds for a sleep, a wake or a reload.
        canary_s: Seconds for the first output after one of these.
        hung_s: Seconds while it serves without a response of its core or a token of what runs; more if its steps take
            longer.
    """

    start_s: float = 1800.0
    control_s: float = 300.0
    canary_s: float = 60.0
    hung_s: float = 60.0


class RankStatus(NamedTuple):
    """Status of one rank's core, read between two of its steps.

    Args:
        running: Number of requests that run.
        tokens: Tokens computed so far.
        service_s: Recent service of tenants in seconds by name; ``None`` if they have no shares.
    """

    running: float
    tokens: float
    service_s: Mapping[str, float] | None = None


class Engine:
    """A running engine.

    Args:
        model: Model of the weights that it holds, or held before it slept at level 2.
        process: First process of the engine.
        client: HTTP client of the engine.
        limits: Times that the engine may take.
    """

    def __init__(
        self, model: EngineModel, process: EngineProcess, client: EngineClient, limits: EngineLimits = EngineLimits()
    ) -> None:
        self.model, self.process, self.client = model, process, client
        self.level = 0
        """Level of sleep; 0 is awake."""
        self.parked = 0
        """Number of requests that it keeps over its sleep."""
        self.adapters: set[str] = set()
        self.requests = AwaitedRequests(model.tokens_an_event)
        self.settings = model.settings
        """Settings of sloserve that it follows, as JSON."""
        self.start = ""
        """Digest of what it was started with, see :func:`~sloserve.fleet.agent.engine_note.digest_of_start`."""
        self.ended = asyncio.create_task(process.wait())
        self._limits = limits

    @property
    def places(self) -> EnginePlaces:
        return EnginePlaces(self.model.max_num_seqs)

    @property
    def serves(self) -> set[str]:
        """Names of models that requests may ask the engine for."""
        return {self.model.name, *self.adapters}

    async def ready(self) -> None:
        """Wait until the engine responds."""
        try:
            async with asyncio.timeout(self._limits.start_s):
                while not self.ended.done():
                    with suppress(EngineError):
                        await self.client.call("GET", "/health", limit_s=_HEALTH_S)
                        return
                    await asyncio.wait({self.ended}, timeout=_READY_POLL_S)
        except TimeoutError:
            raise EngineError(f"it did not start within {self._limits.start_s:g} s") from None
        raise EngineError(f"it ended with status {self.ended.result()} before it served")

    async def check_attached(self) -> None:
        """Check that a server that others started has the model, under the name that the fleet gives it."""
        if self.model.attached is None:
            return
        names = await self._served_names()
        if self.model.name not in names:
            raise EngineError(
                f"{self.model.attached.url} has no model {self.model.name!r}, but {', '.join(names)}; start it with "
                f"--served-model-name {self.model.name}"
            )
        if self.model.attached.admin_key is not None:
            await self.status(_HEALTH_S)

    async def is_healthy(self) -> bool:
        """Return whether the engine reports health: a sleeping engine, or one that computes garbage, does so too."""
        try:
            await self.client.call("GET", "/health", limit_s=_HEALTH_S)
        except EngineLate:
            return True
        except EngineError:
            return False
        return True

    @property
    def hung_s(self) -> float:
        """Seconds of silence after which the engine counts as stopped.

        They are several of the longest steps that its profile foresees, and not less than a step that compiles may
        take.
        """
        return max(self._limits.hung_s, _STEPS * self.model.longest_step_s)

    async def status(self, limit_s: float) -> list[RankStatus]:
        """Return the status of each rank's core."""
        if self.model.attached is not None and self.model.attached.admin_key is None:
            return []  # stock vLLM says nothing of its core but its health
        ranks = await self.client.call("GET", "/sloserve/status", limit_s=limit_s)
        try:
            return [
                RankStatus(float(rank["running"]), float(rank["scheduled_tokens"]), _service_s(rank)) for rank in ranks
            ]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"its status cannot be read: {error!r}") from None

    async def set_elsewhere(self, service_s: Mapping[str, float], limit_s: float) -> None:
        """Set what tenants have had in the other engines of the fleet, in seconds by name."""
        await self.client.call("PUT", "/sloserve/tenants", {"elsewhere_s": service_s}, limit_s=limit_s)

    async def set_settings(self, patch: Mapping[str, Any]) -> None:
        """Change the settings of sloserve that the engine follows, by a JSON merge patch."""
        await self.client.call("PUT", "/sloserve/settings", patch, limit_s=self._limits.control_s)

    async def sleep(self, level: int) -> None:
        """Put the engine to sleep. Requests that run end before; the caller ensures that none of them takes long."""
        await self._call("/sleep", level=level, mode="wait")
        self.level = level

    async def park(self) -> int:
        """Put the engine to sleep at level 1, keeping its requests and their open streams.

        Returns: the number of requests.
        """
        parked = await self._call("/sloserve/park", {"level": 1})
        try:
            self.level, self.parked = 1, sum(int(rank["requests"]) for rank in parked)
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(f"its response to parking cannot be read: {error!r}") from None
        return self.parked

    async def wake(self) -> None:
        """Wake the engine from either level; parked requests go on."""
        if self.level == 2:
            await self._call("/wake_up", tags="weights")
            await self._call("/collective_rpc", {"method": "reload_weights"})
            await self._call("/wake_up", tags="kv_cache")
        elif self.parked:
            await self._call("/sloserve/unpark")
        else:
            await self._call("/wake_up")
        self.level = self.parked = 0

    async def read_weights(self, model: EngineModel) -> None:
        """Read the weights of a model that is built alike, in place of its own, and take its name."""
        await self._call("/sloserve/reload", {"weights_path": model.model, "model": model.name})
        self.model = model

    async def load_adapter(self, model: EngineModel) -> None:
        try:
            await self._call("/v1/load_lora_adapter", {"lora_name": model.name, "lora_path": model.model})
        except EngineError:
            # An earlier agent may have loaded it, and have died before it could note that.
            if model.name not in await self._served_names():
                raise
        self.adapters.add(model.name)

    async def canary(self, model: str) -> list[int]:
        """Return greedy tokens after a fixed prompt."""
        body = {**CANARY, "model": model}
        answer = await self.client.call("POST", "/v1/completions", body, limit_s=self._limits.canary_s)
        try:
            return [int(token) for token in answer["choices"][0]["token_ids"]]
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(f"its response to the canary prompt is not a completion: {error!r}") from None

    def kill(self) -> None:
        """Kill the engine at once, with all of its processes."""
        self.process.kill()

    async def kill_and_wait(self) -> None:
        """Kill the engine, and wait until it is gone."""
        self.kill()
        await self.ended
        await self.client.close()

    async def leave(self) -> None:
        """Leave the engine to another agent."""
        self.ended.cancel()
        await self.client.close()

    async def _served_names(self) -> list[str]:
        answer = await self.client.call("GET", "/v1/models", limit_s=_HEALTH_S)
        try:
            return [str(one["id"]) for one in answer["data"]]
        except (LookupError, TypeError) as error:
            raise EngineError(f"its list of models cannot be read: {error!r}") from None

    async def _call(self, path: str, body: Any = None, **params: str | int) -> Any:
        return await self.client.call("POST", path, body, limit_s=self._limits.control_s, **params)


def _service_s(rank: Mapping[str, Any]) -> Mapping[str, float] | None:
    """Return the service of tenants in the status of a rank; versions before shares have none."""
    found = rank.get("tenant_service_s")
    return None if found is None else {str(name): float(had_s) for name, had_s in found.items()}
