"""Brings engines of an earlier agent to what the fleet's file says today: live if that is possible."""

import json
import logging

from sloserve.core.errors import EngineError
from sloserve.core.merge_patch import merge_patch
from sloserve.fleet.agent.engine import Engine

logger = logging.getLogger(__name__)


async def follow_settings(engine: Engine) -> str | None:
    """Have an engine follow its model's settings; return why it does not, or ``None`` if it does."""
    wanted = engine.model.settings
    if not wanted or engine.settings == wanted:
        return None
    patch = merge_patch(json.loads(engine.settings or "{}"), json.loads(wanted))
    try:
        if patch:
            await engine.set_settings(patch)
    except EngineError as error:
        return f"it does not follow other settings while it runs: {error}"
    engine.settings = wanted
    logger.info("the engine of model %s follows other settings: %s", engine.model.name, ", ".join(patch))
    return None
