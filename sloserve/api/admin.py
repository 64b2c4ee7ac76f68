"""Admin routes: what the scheduler is doing, and which policy it follows, changed without a restart.

They exist only where the operator set a key of their own (the API key of users opens nothing here), and are served
under :data:`PREFIX` beside vLLM's routes, by :class:`~sloserve.api.middleware.SLOMiddleware`.
"""

import secrets
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.errors import ConfigError, EngineError
from sloserve.vllm_plugin import engine_control
from sloserve.wire import errors

PREFIX = "/sloserve/"
ENGINE = "sloserve.engine"
"""Key of the scope under which the engine client of vLLM's app is handed on."""

MAX_POLICY_CHARS = 1000


class PolicyChange(BaseModel):
    """Which policies the scheduler shall follow from now on; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    policy: Annotated[str | None, Field(max_length=MAX_POLICY_CHARS, examples=["edf:evict=false"])] = None
    shadow_policy: Annotated[
        str | None, Field(max_length=MAX_POLICY_CHARS, description="the empty string turns shadow mode off")
    ] = None


def admin_app(key: str) -> FastAPI:
    """The routes, for whoever shows ``key`` as a bearer token."""
    bearer = HTTPBearer(auto_error=False)

    def authorized(shown: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if shown is None or not secrets.compare_digest(shown.credentials.encode(), key.encode()):
            raise HTTPException(401, "the admin key is needed: Authorization: Bearer KEY")

    app = FastAPI(
        title="sloserve admin",
        dependencies=[Depends(authorized)],
        responses={400: {"description": "not a policy"}, 401: {"description": "no admin key, or a wrong one"}},
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )

    @app.exception_handler(ConfigError)
    @app.exception_handler(EngineError)
    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ConfigError | EngineError)
        status = errors.status(error)
        return JSONResponse(errors.body(status, str(error)), status)

    @app.get(PREFIX + "status")
    async def status(request: Request) -> list[dict[str, Any]]:
        """What each engine rank's scheduler is doing."""
        found: list[dict[str, Any]] = await engine_control.status(_engine(request))
        return found

    @app.put(PREFIX + "policy")
    async def change(request: Request, wanted: PolicyChange) -> list[dict[str, Any]]:
        """Changes the policy, or the shadow policy, of every engine rank between two steps."""
        engine = _engine(request)
        if wanted.policy is not None:
            await engine_control.set_policy(engine, wanted.policy)
        if wanted.shadow_policy is not None:
            await engine_control.set_shadow_policy(engine, wanted.shadow_policy or None)
        found: list[dict[str, Any]] = await engine_control.status(engine)
        return found

    return app


def _engine(request: Request) -> Any:
    engine = request.scope[ENGINE]
    if engine is None:
        raise EngineError("no engine is running behind this server")
    return engine
