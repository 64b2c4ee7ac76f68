"""Add CORS headers to responses that are sent outside of vLLM's middleware: refusals, ``/ready``, and our headers.

vLLM adds Starlette's CORSMiddleware first, so it becomes the innermost, and what stands around it responds without its
headers: a page of another origin then sees a failed fetch in place of a 429. Here the same instance, with the
operator's origins, is taken out of its place and put around what was outside.
"""

from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from sloserve.wire.headers import EXPOSED

_EXPOSE = "Access-Control-Expose-Headers"


def taken_out(app: ASGIApp) -> tuple[ASGIApp, CORSMiddleware | None]:
    """Return ``app``, a stack of middleware, without its CORSMiddleware, and that one; ``None`` if it has none."""
    outer: Any = None
    inner: Any = app
    while inner is not None and not isinstance(inner, CORSMiddleware):
        outer, inner = inner, getattr(inner, "app", None)
    if inner is None:
        return app, None
    if outer is None:
        return inner.app, inner
    outer.app = inner.app
    return app, inner


def put_around(cors: CORSMiddleware, app: ASGIApp) -> CORSMiddleware:
    """Return ``cors`` around ``app``, with our headers added to the headers that it exposes."""
    cors.app = app
    exposed = [name for name in cors.simple_headers.get(_EXPOSE, "").split(", ") if name]
    cors.simple_headers[_EXPOSE] = ", ".join(dict.fromkeys([*exposed, *EXPOSED]))
    return cors
