"""Refuse SLOs on websockets (vLLM's ``/v1/realtime``): a session has no arrival and no end from which to count.

A handshake that states an SLO is refused before it is accepted, with the reason in the response, where the server can
send one (uvicorn can), and in the log. A websocket without an SLO passes as it is; what it generates has the default
class.
"""

from typing import Any

from starlette.types import Message, Receive, Scope, Send

from sloserve.core.errors import InvalidRequest, SloServeError
from sloserve.vllm_plugin.server.front_end_of import front_end_of
from sloserve.vllm_plugin.server.stated import warn_operator
from sloserve.wire.asgi import refuse_error
from sloserve.wire.body import BodyFields
from sloserve.wire.context import check_no_slo
from sloserve.wire.headers import HeaderRules, read_headers

_POLICY_VIOLATION = 1008
_MOST_REASON_BYTES = 123
"""Room for a reason in a websocket's closing frame. Source: RFC 6455, Sec. 5.5."""


async def refused_websocket(engine: Any, rules: HeaderRules, scope: Scope, receive: Receive, send: Send) -> bool:
    """Return whether the head of a websocket states or misspells an SLO; then it was refused."""
    try:
        check_no_slo(read_headers(scope["headers"], rules), BodyFields())
    except InvalidRequest as error:
        front_end = front_end_of(engine)
        if front_end is not None:
            front_end.count_invalid()
        warn_operator("clients state SLOs for a websocket, which keeps none, and are refused with 400")
        await refuse_websocket(error, scope, receive, send)
        return True
    return False


async def refuse_websocket(error: SloServeError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a websocket before it is accepted, with the reason in the response where the server can send one."""
    await receive()  # the event that the client wants to connect
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        reason = str(error).encode()[:_MOST_REASON_BYTES].decode(errors="ignore")
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        return

    async def answer(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await refuse_error(answer, error)
