"""The progress of a request, for the tenant that sent it.

vLLM's own authentication leaves routes below ``/sloserve`` open, so its key is checked here where the server has one.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable
from typing import Any, Final

from sloserve.api.callers import Caller
from sloserve.core.errors import InvalidRequest, Unauthorized
from sloserve.wire.asgi import Scope, Send, bearer, first, refuse_error
from sloserve.wire.headers import read_headers
from sloserve.wire.in_flight import RequestsInFlight, answer_progress

_VLLM_KEY: Final = "VLLM_API_KEY"


async def answer_progress_to(caller: Caller, send: Send, known: RequestsInFlight, processes: int) -> None:
    """Answer a request for the progress of another one.

    Args:
        caller: Sender of the request for the progress.
        send: ASGI's ``send`` of the request.
        known: The requests in flight in this process.
        processes: Number of API processes of the server.
    """
    scope = caller.scope
    if caller.tenant is None and not _shows_key(scope):
        await refuse_error(send, Unauthorized("the API key of this server is needed: Authorization: Bearer KEY"))
        return
    try:
        tenant = read_headers(scope["headers"], caller.rules).tenant if caller.tenant is None else caller.tenant.name
    except InvalidRequest as error:
        await refuse_error(send, error)
        return
    others = (
        f"; another of the {processes} API processes of this server may have it: ask again" if processes > 1 else ""
    )
    await answer_progress(scope, send, known, tenant, others)


def _shows_key(scope: Scope) -> bool:
    """Return whether a request shows one of vLLM's keys, or the server has none."""
    shown = hashlib.sha256(bearer(first(scope["headers"], b"authorization"))).digest()
    keys = [hashlib.sha256(os.fsencode(key)).digest() for key in _keys(scope)]
    return not keys or any([secrets.compare_digest(shown, key) for key in keys])


def _keys(scope: Scope) -> Iterable[str]:
    app = scope.get("app")
    args: Any = None if app is None else getattr(app.state, "args", None)
    return filter(None, getattr(args, "api_key", None) or [os.environ.get(_VLLM_KEY)])
