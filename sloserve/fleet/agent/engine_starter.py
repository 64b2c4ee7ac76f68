"""The start of an engine: what it is started with, and the note by which the next agent finds it."""

import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sloserve.core.errors import EngineError
from sloserve.fleet.agent.engine import Engine
from sloserve.fleet.agent.engine_client import EngineClient
from sloserve.fleet.agent.engine_logs import log_path
from sloserve.fleet.agent.engine_note import EngineNote, digest_of_start
from sloserve.fleet.agent.engine_spec import EngineModel, EngineSpec
from sloserve.fleet.agent.host_parts import HostParts
from sloserve.scheduler.settings import ADMIN_KEY


class EngineStarter:
    """Starts engines of one instance.

    Args:
        instance: Name of the instance.
        models: Models that it can serve, by name.
        host: State that the instances of the host share.
        environment: Environment variables of all its engines.
    """

    def __init__(
        self, instance: str, models: Mapping[str, EngineModel], host: HostParts, environment: Mapping[str, str]
    ) -> None:
        self._instance, self._models, self._host, self._environment = instance, models, host, environment

    def digest(self, model: EngineModel) -> str:
        """Return a digest of what an engine of the model would be started with now."""
        return digest_of_start(model, self._environment, self._has_adapters(model))

    def _has_adapters(self, model: EngineModel) -> bool:
        return any(other.adapter_of == model.name for other in self._models.values())

    async def launch(self, model: EngineModel) -> tuple[Engine, Path]:
        """Start the process of an engine of the model; return the engine, which is not ready yet, and its log.

        Raises: EngineError if it cannot be started.
        """
        host, key = self._host, secrets.token_urlsafe(16)
        has_adapters = self._has_adapters(model)
        environment = {**self._environment, **model.environment, "VLLM_SERVER_DEV_MODE": "1", ADMIN_KEY: key}
        environment |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if has_adapters else {}
        socket = host.run_folder / f"{next(host.sockets)}.sock"
        socket.unlink(missing_ok=True)
        arguments = [model.model, "--uds", str(socket), "--served-model-name", model.name]
        arguments += ["--disable-access-log-for-endpoints", "/health"]  # asked each second
        arguments += [*(["--enable-lora"] if has_adapters else []), *model.flags]
        log = log_path(host.log_folder, self._instance, model.name)
        note = msgspec.json.encode(EngineNote(self._instance, model.name, self.digest(model), str(socket), key))
        try:
            process = await host.launcher.launch(EngineSpec(tuple(arguments), environment, socket, log, note))
        except OSError as error:
            raise EngineError(f"model {model.name} cannot be started: {error}") from error
        at = model.attached
        if at is None:
            client = EngineClient(socket, key)
        else:
            client = EngineClient(socket, at.admin_key or "", at=at.url, key=at.key)
        engine = Engine(model, process, client, host.limits)
        engine.start = self.digest(model)
        return engine, log
