"""The admin routes and ``/ready`` under plain ``vllm serve``, where no middleware of ours serves them.

vLLM loads the ``vllm.endpoint_plugins`` entry point where ``VLLM_PLUGINS`` names ``sloserve``; as everywhere, there are
no admin routes without a key.
"""

import logging
import os
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from sloserve.api.admin import PREFIX, AdminApp, engine_of
from sloserve.api.lifecycle import READY_PATH, readiness
from sloserve.scheduler.settings import ADMIN_KEY

logger = logging.getLogger(__name__)


class AdminRoutes:
    """The endpoint plugin that vLLM loads, see ``vllm.plugins.endpoint_plugins.interface``."""

    name = "sloserve"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the route ``/ready`` and the routes below :data:`~sloserve.api.admin.PREFIX`."""
        app.router.routes.append(Route(READY_PATH, _ready))
        key = os.environ.get(ADMIN_KEY)
        if key:
            app.router.routes.append(Mount(PREFIX.rstrip("/"), AdminApp(key)))
        else:
            logger.warning("no admin routes: %s is not set", ADMIN_KEY)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Do nothing: the routes find the engine where vLLM keeps it."""


async def _ready(request: Request) -> JSONResponse:
    return await readiness(engine_of(request.scope))
