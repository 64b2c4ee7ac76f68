"""Serve the admin routes, which need no restart of the server.

They report what the scheduler does (once, or as it goes on), change its policies, set what tenants had in the other
engines of a fleet, park and unpark the engine, and load other weights. They exist only where the operator set an admin
key; the API key of users opens nothing here. The key is checked before anything else: without it no byte of a body is
read, and every route gets the same response. The files of the page, which hold no data and are the same for all
servers, are the one exception.
"""

import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from sloserve.api.explaining import Explaining, recorded
from sloserve.core.clock import SystemClock
from sloserve.core.errors import BadBody, ConfigError, EngineError, QueueFull
from sloserve.core.files.model import Allowed, check_model, dotted
from sloserve.core.slo import MAX_TARGET_S
from sloserve.core.tenants import MOST_TENANTS
from sloserve.vllm_plugin.server import engine_control, parking, reloading
from sloserve.vllm_plugin.server.front_end_of import (
    api_processes,
    controlling,
    front_end_of,
    live_settings_of,
    on_stop,
)
from sloserve.vllm_plugin.server.server_lock import ServerLock
from sloserve.wire import errors, strict_json
from sloserve.wire.asgi import CLOSE, ClientLeft, refuse, refuse_error, shows_admin_key
from sloserve.wire.live_feed import LiveFeed
from sloserve.wire.opening import BodyLimits, BoundedBody
from sloserve.wire.watch_page import sent_page

logger = logging.getLogger(__name__)

PREFIX = "/sloserve/"
ROUTES = {
    "status": ("GET",),
    "events": ("GET",),
    "policy": ("PUT",),
    "settings": ("GET", "PUT"),
    "explain": ("GET",),
    "tenants": ("PUT",),
    "park": ("POST",),
    "unpark": ("POST",),
    "reload": ("POST",),
}
"""Methods of each route."""

MAX_POLICY_CHARS = 500
MAX_BODY_BYTES = 16384
"""Two policies of the greatest length, every character an escaped pair of surrogates, take 12,000."""

MAX_TENANTS_BYTES = 1 << 18
"""Bytes of a body with the service or the weights of ``MOST_TENANTS`` tenants, for names of 200 bytes."""

_PolicyText = Annotated[str | None, Field(strict=True, max_length=MAX_POLICY_CHARS)]
_POLICY = Allowed(f"the text of a policy, as for --policy, of at most {MAX_POLICY_CHARS} characters")

_Name = Annotated[str | None, Field(strict=True, min_length=1, max_length=60)]
_NAME = Allowed("text of 1 to 60 characters")

_Path = Annotated[str, Field(strict=True, min_length=1, max_length=4096)]
_PATH = Allowed("text of 1 to 4096 characters")

_LEVEL = Allowed("0 or 1; what a sleep of level 2 forgets cannot be parked")


class PolicyChange(BaseModel):
    """A change of the policies that the scheduler follows; a field that is left out stays as it is.

    An empty ``shadow_policy`` turns shadow mode off. ``by`` is a name for the record, and ``undo`` the id of the last
    change of the policy, which the status shows.
    """

    model_config = ConfigDict(extra="forbid")

    policy: Annotated[_PolicyText, _POLICY] = None
    shadow_policy: Annotated[_PolicyText, _POLICY] = None
    by: Annotated[_Name, _NAME] = None
    undo: Annotated[_Name, _NAME] = None

    def check(self) -> None:
        """Raise ConfigError where a policy is stated beside the change that is undone."""
        if self.undo is not None and self.policy is not None:
            raise ConfigError("undo: excludes policy, since it brings the earlier policy back; leave one of them out")


def _who(scope: Scope, stated: str | None) -> str:
    """Return who asks for a change, as far as it is known: the stated name, and the client's address."""
    client = scope.get("client")
    address = f"from {client[0]}" if client else ""
    return f"{stated} {address}".strip() if stated else address


def _seconds_by_name(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > MOST_TENANTS:
        raise ValueError
    for name, service_s in value.items():
        is_number = isinstance(service_s, (int, float)) and not isinstance(service_s, bool)
        if not (isinstance(name, str) and is_number and 0.0 <= service_s <= MAX_TARGET_S):
            raise ValueError
    return {name: float(service_s) for name, service_s in value.items()}


class TenantsElsewhere(BaseModel):
    """Recent service of tenants in the other engines of a fleet, see :mod:`sloserve.engine.tenant_shares`."""

    model_config = ConfigDict(extra="forbid")

    elsewhere_s: Annotated[
        Mapping[str, float],
        PlainValidator(_seconds_by_name),
        Allowed(f"a mapping of at most {MOST_TENANTS} tenants to seconds from 0 to {MAX_TARGET_S:.0f}"),
    ]


class Parking(BaseModel):
    """Depth to which the engine sleeps with its requests kept; see :mod:`sloserve.vllm_plugin.server.parking`."""

    model_config = ConfigDict(extra="forbid")

    level: Annotated[int, Field(strict=True, ge=0, le=1), _LEVEL] = 1


class Reload(BaseModel):
    """Other weights to read, and the name that the model has from then on."""

    model_config = ConfigDict(extra="forbid")

    weights_path: Annotated[_Path, _PATH]
    model: Annotated[_Path, _PATH]


_Model = TypeVar("_Model", bound=BaseModel)


class AdminApp:
    """The routes as an ASGI app within vLLM's, for clients that show ``key`` as a bearer token.

    It takes whatever path begins with :data:`PREFIX`, behind any root path, and asks the engine of the app around it.
    """

    def __init__(self, key: str) -> None:
        self._key = os.fsencode(key)
        self._lock = ServerLock()
        self._feed: LiveFeed | None = None
        self._explaining: Explaining | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # a mount passes these on as well
            await send({"type": "websocket.close"})
            return
        route = scope["path"].rpartition(PREFIX)[2]
        if await sent_page(scope, send, route, "server") or not await shows_admin_key(scope, send, self._key):
            return
        if route not in ROUTES:
            known = ", ".join(f"{method} {PREFIX}{name}" for name, methods in ROUTES.items() for method in methods)
            await refuse(send, HTTPStatus.NOT_FOUND, f"no such admin route; there are {known}", headers=[CLOSE])
            return
        if scope["method"] not in ROUTES[route]:
            allow = ("allow", ", ".join(ROUTES[route]))
            message = f"{PREFIX}{route}: the method is {' or '.join(ROUTES[route])}"
            await refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, message, headers=[allow, CLOSE])
            return
        try:
            engine = engine_of(scope)
            if engine is None:
                raise EngineError("no engine is running behind this server")
            if route == "events":
                await self._feed_of(engine, scope).serve(receive, send)
                return
            answer = await self._answer(route, engine, scope, receive)
        except (BadBody, QueueFull) as error:
            await refuse_error(send, error)
        except ClientLeft:
            pass
        except (ConfigError, EngineError) as error:
            await refuse(send, errors.status(error), str(error))
        except Exception:
            logger.exception("an admin route failed")
            await refuse(send, HTTPStatus.INTERNAL_SERVER_ERROR, "the route failed; the server's log says why")
        else:
            await JSONResponse(answer)(scope, receive, send)

    def _feed_of(self, engine: Any, scope: Scope) -> LiveFeed:
        """Return the live feed of this process, which ends once the server takes no more work."""
        if self._feed is None:
            shown = front_end_of(engine)
            if shown is None:
                raise EngineError("the engine does not run sloserve's scheduler, so it has no live view")
            state = scope["app"].state
            view = shown.live_view(lambda: _model_name(state))
            self._feed = LiveFeed(view.read, history=shown.load.history)
            on_stop(engine, self._feed.close)
        return self._feed

    async def _answer(self, route: str, engine: Any, scope: Scope, receive: Receive) -> Any:
        if route == "status":
            return await engine_control.status(engine)
        if route == "policy":
            change = await _read(PolicyChange, scope, receive)
            change.check()
            async with self._alone(engine):
                by = _who(scope, change.by)
                await engine_control.set_policies(
                    engine, change.policy, change.shadow_policy, by=by, undoes=change.undo
                )
                return await engine_control.status(engine)
        if route == "settings":
            return await self._settings(engine, scope, receive)
        if route == "explain":
            live = live_settings_of(engine)
            settings = recorded(None if live is None else live.now.settings)
            if self._explaining is None:
                self._explaining = Explaining()
                on_stop(engine, self._explaining.close)
            return await self._explaining.answer(settings, scope.get("query_string", b""), SystemClock().now_s())
        if route == "tenants":
            tenants = await _read(TenantsElsewhere, scope, receive, most_bytes=MAX_TENANTS_BYTES)
            return await engine_control.set_elsewhere(engine, tenants.elsewhere_s)
        if route == "park":
            wanted = await _read(Parking, scope, receive, default=b"{}")
            async with self._alone(engine):
                return await parking.park(engine, wanted.level)
        if route == "reload":
            weights = await _read(Reload, scope, receive)
            models = getattr(scope["app"].state, "openai_serving_models", None)
            async with self._alone(engine):
                processes = api_processes(engine)
                with controlling(engine):  # weights of some GB take minutes to read
                    await reloading.reload(engine, models, weights.weights_path, weights.model, processes)
            return {"model": weights.model}
        async with self._alone(engine):
            await parking.unpark(engine)
            return await engine_control.status(engine)

    async def _settings(self, engine: Any, scope: Scope, receive: Receive) -> Any:
        """Return the settings in force, after a change of them if the request makes one."""
        live = live_settings_of(engine)
        if live is None:
            raise EngineError("the engine does not run sloserve's scheduler, so it has no settings of sloserve")
        if scope["method"] == "GET":
            return live.now.as_json()
        patch = await _read_object(scope, receive, "settings", most_bytes=MAX_TENANTS_BYTES)
        return await live.merge(engine, patch, f"PUT {PREFIX}settings {_who(scope, None)}".strip())

    def _alone(self, engine: Any) -> AbstractAsyncContextManager[None]:
        """Return a lock under which something is changed; one request to one of the server's API processes holds it."""
        live = live_settings_of(engine)
        return self._lock.held(None) if live is None else live.alone()


async def _read(
    model: type[_Model], scope: Scope, receive: Receive, *, default: bytes = b"", most_bytes: int = MAX_BODY_BYTES
) -> _Model:
    """Return the values that a body states, or ``default`` if it is empty.

    Raises: BadBody for a body that cannot be read; ConfigError for values that are not valid.
    """
    fields = ", ".join(model.model_fields)
    values = await _read_object(scope, receive, fields, default=default, most_bytes=most_bytes)
    wanted, problems = check_model(model, values)
    if wanted is None:
        raise ConfigError("; ".join(f"{dotted(problem.path)}: {problem.text}" for problem in problems))
    return wanted


async def _read_object(
    scope: Scope, receive: Receive, fields: str, *, default: bytes = b"", most_bytes: int = MAX_BODY_BYTES
) -> dict[str, Any]:
    """Return the JSON object of a body, or ``default`` if the body is empty.

    Raises: BadBody for a body that cannot be read; ConfigError for a body that is no object with ``fields``.
    """
    body = await BoundedBody(scope, receive, BodyLimits(most_bytes)).read()
    try:
        values = strict_json.loads(body or default)
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # neither an engine nor standard output takes one
        half = ascii(error.object[error.start])
        raise ConfigError(f"request body: has half of a surrogate pair, {half}, which is no character") from None
    except RecursionError:
        raise ConfigError("request body: its values are nested too deep") from None
    except ValueError as error:
        raise ConfigError(f"request body: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"request body: is not an object with {fields}")
    return values


def _model_name(state: Any) -> str:
    """Return the name by which clients know the model now; a reload changes it.

    Args:
        state: The state of vLLM's app.
    """
    models = getattr(state, "openai_serving_models", None)
    return str(models.base_model_paths[0].name) if models is not None and models.base_model_paths else ""


def engine_of(scope: Scope) -> Any:
    """Return the engine client of the app that serves ``scope``; ``None`` for an app without an engine."""
    return getattr(scope["app"].state, "engine_client", None) if "app" in scope else None
