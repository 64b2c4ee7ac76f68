"""The note about a running engine, by which the host's next agent takes it over."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

import msgspec

from sloserve.fleet.agent.engine_spec import EngineModel

_SWAP_SPACE: Final = "--swap-space-gib"


class EngineNote(msgspec.Struct):
    """What the next agent has to know of an engine.

    Args:
        instance: Name of its instance.
        model: Model of the weights that it holds, or held before it slept at level 2.
        start: Digest of the flags and the environment with which the model is started, see :func:`digest_of_start`.
        socket: Path of its unix socket.
        key: Key of its admin routes.
        settings: Settings of sloserve that it follows, as JSON.
        is_steady: Whether no control call is on its way; if one is, its state is not known.
        serves: Model that the instance serves with it, which may be an adapter; ``None`` if it is not the active one.
        level: Level of sleep; 0 is awake.
        parked: Number of requests that it keeps over its sleep.
        adapters: Adapters that it has loaded.
        canaries: Recorded canary outputs of its model and adapters.
    """

    instance: str
    model: str
    start: str
    socket: str
    key: str
    settings: str = ""
    is_steady: bool = False
    serves: str | None = None
    level: int = 0
    parked: int = 0
    adapters: list[str] = []
    canaries: dict[str, list[int]] = {}


def digest_of_start(model: EngineModel, environment: Mapping[str, str], has_adapters: bool) -> str:
    """Return a digest of what an engine of the model is started with: another one needs another engine.

    Its share of the swap space is left out: it changes with the number of models, and a running engine keeps its own.

    Args:
        model: The model.
        environment: Environment variables of the instance's engines.
        has_adapters: Whether the instance can serve adapters of the model.
    """
    flags = [
        flag for before, flag in zip(("", *model.flags), model.flags, strict=False) if _SWAP_SPACE not in (before, flag)
    ]
    parts = [model.model, flags, dict(model.environment), dict(environment), has_adapters]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_note(note: bytes) -> EngineNote | None:
    """Return the note, or ``None`` for one of a version that says less."""
    try:
        return msgspec.json.decode(note, type=EngineNote)
    except msgspec.MsgspecError:
        return None
