"""Start and stop of the server: ``/ready``, what is printed once it serves, and how long it waits for slow clients.

``/ready`` says whether this server takes new work: 200, or 503 while it is stopping, its engine has failed or hangs, or
a reload of its weights has; before that no socket listens. ``/health`` stays vLLM's, which asks whether the process
should be replaced; it is 503 where the engine has failed or hangs.
"""

import asyncio
import ipaddress
import json
import os
import shlex
import sys
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Message, Send

from sloserve.api.http3 import start
from sloserve.core.errors import ShuttingDown
from sloserve.core.json_log import logs_are_json, say
from sloserve.scheduler.settings import plugin_settings
from sloserve.vllm_plugin.server.front_end_of import check_open, core_hangs, count_stopped, on_stop
from sloserve.vllm_plugin.server.reloading import failed_reload
from sloserve.wire import errors
from sloserve.wire.asgi import refuse_error, unsent
from sloserve.wire.context import HTTPContext
from sloserve.wire.optional_http3 import Http3Front
from sloserve.wire.resolve import Classify

READY_PATH = "/ready"

LINGER_S = 5.0
"""Seconds to wait, at the end, for clients that do not read what is sent to them: uvicorn alone waits for ever."""

_STARTED_POLL_S = 0.05


async def readiness(engine: Any) -> JSONResponse:
    """Return the response of ``/ready``.

    Args:
        engine: vLLM's engine client; ``None`` for a server without one.
    """
    state = "failed" if engine is not None and engine.errored else "ready"
    if state == "ready" and await core_hangs(engine):
        state = "hangs"
    if state == "ready" and failed_reload(engine) is not None:
        state = "reload-failed"
    try:
        check_open(engine)
    except ShuttingDown:
        state = "stopping"
    status = HTTPStatus.OK if state == "ready" else HTTPStatus.SERVICE_UNAVAILABLE
    return JSONResponse({"status": state}, status)


async def refused_for_stopping(
    engine: Any, send: Send, http: HTTPContext | None = None, form: errors.ErrorBody = errors.body
) -> bool:
    """Return whether the server is stopping; if so, refuse the request with 503 before any of its body is read.

    Args:
        engine: vLLM's engine client.
        send: Sends the refusal to the client.
        http: The context of a request that a handler has had, ``None`` before that. A request that the engine accepted
            is counted at its own end, not here.
        form: Makes the body of the refusal.
    """
    try:
        check_open(engine)
    except ShuttingDown as error:
        if http is None or not (http.requests or http.served):
            count_stopped(engine)
        await refuse_error(send, error, form=form)
        return True
    return False


def unless_overtaken(engine: Any, http: HTTPContext, send: Send, form: errors.ErrorBody = errors.body) -> Send:
    """Return a ``send`` that turns a 500 into a refusal if the server has begun to stop.

    Such a request met something that was stopped already.
    """
    refused = False

    async def failed(message: Message) -> None:
        nonlocal refused
        refused = await refused_for_stopping(engine, send, http, form)
        if not refused:
            await send(message)

    def checked(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start" and message["status"] == HTTPStatus.INTERNAL_SERVER_ERROR:
            return failed(message)
        return unsent() if refused else send(message)

    return checked


async def started(app: Any, http3: Http3Front, classify: Classify) -> None:
    """Prepare the server that begins to serve ``app``: limit its shutdown, start HTTP/3, and print how to try it.

    The hint is printed once the server listens. HTTP/3 notifies its clients as soon as the server stops: its requests
    end long before TCP's port closes.

    Args:
        app: vLLM's app, with the server and its arguments in its state. For any other app nothing is done.
        http3: The HTTP/3 listener to start.
        classify: Returns a request's SLO and tenant from its headers and its peer's address.
    """
    server, args = getattr(app.state, "server", None), getattr(app.state, "args", None)
    if server is None or args is None:
        return
    if server.config.timeout_graceful_shutdown is None:
        server.config.timeout_graceful_shutdown = LINGER_S
    engine = getattr(app.state, "engine_client", None)
    if engine is None or getattr(engine.vllm_config.parallel_config, "_api_process_rank", 0) > 0:
        return  # one of several API servers speaks for all
    while not (server.started or server.should_exit):
        await asyncio.sleep(_STARTED_POLL_S)
    if server.started and not server.should_exit:
        settings = plugin_settings(engine.vllm_config.additional_config)
        also = await start(http3, app, args, settings, classify)
        on_stop(engine, http3.going_away)
        if logs_are_json():
            say("ready", how_to_try=how_to_try(args, also, has_keys=settings.keys is not None).strip())
            return
        sys.stdout.flush()
        # Below the text layer, where vLLM would put the process's name in front of a line that is there to be copied.
        sys.stdout.buffer.write(how_to_try(args, also, has_keys=settings.keys is not None).encode())
        sys.stdout.buffer.flush()


def how_to_try(args: Any, also: str | None = None, *, has_keys: bool = False) -> str:
    """Return where the server listens, and a command that works there.

    Args:
        args: The arguments of ``vllm serve``.
        also: a further address to print, of HTTP/3; ``None`` without one.
        has_keys: Whether requests need a key of the file of keys.
    """
    url = f"{'https' if args.ssl_certfile else 'http'}://{_reachable(args.host)}:{args.port}"
    where = url
    command = ["curl", "-N"]
    if args.uds:
        url, where = "http://localhost", args.uds
        command += ["--unix-socket", shlex.quote(args.uds)]
    model = (args.served_model_name or [args.model])[0]
    body = {"model": model, "prompt": "Hello", "max_tokens": 50, "stream": True, "slo": {"report": True}}
    command += [f"{url}/v1/completions", "-H 'Content-Type: application/json'"]
    if has_keys or any(args.api_key or []):
        command.append("-H 'Authorization: Bearer YOUR_API_KEY'")
    elif os.environ.get("VLLM_API_KEY"):
        command.append('-H "Authorization: Bearer $VLLM_API_KEY"')
    command += ["-H 'x-slo-ttft-ms: 500'", "-d", shlex.quote(json.dumps(body))]
    others = "" if also is None else f"and {also}\n\n"
    return f"\nsloserve is ready on {where}; try:\n\n  {' '.join(command)}\n\n{others}"


def _reachable(host: str | None) -> str:
    """Return ``host`` as a client on this machine names it in a URL."""
    try:
        address = ipaddress.ip_address(host or "0.0.0.0")
    except ValueError:
        return str(host)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return str(address) if address.version == 4 else f"[{address}]"
