"""The admin routes under plain ``vllm serve``, where no middleware of ours serves them.

vLLM loads the ``vllm.endpoint_plugins`` entry point where ``VLLM_PLUGINS`` names ``sloserve``; as everywhere, there are
no routes without a key.
"""

import logging
import os
from typing import Any

from fastapi import FastAPI
from starlette.routing import Mount

from sloserve.api.admin import PREFIX, AdminApp
from sloserve.vllm_plugin.config import ADMIN_KEY

logger = logging.getLogger(__name__)


class AdminRoutes:
    """What vLLM asks of an endpoint plugin, see ``vllm.plugins.endpoint_plugins.interface``."""

    name = "sloserve"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Serves what is below :data:`~sloserve.api.admin.PREFIX`."""
        key = os.environ.get(ADMIN_KEY)
        if key:
            app.router.routes.append(Mount(PREFIX.rstrip("/"), AdminApp(key)))
        else:
            logger.warning("no admin routes: %s is not set", ADMIN_KEY)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """The routes find the engine where vLLM keeps it."""
