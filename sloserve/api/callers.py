"""The tenant of a request: by its key, or without keys by a header of a trusted proxy.

With a file of keys (setting ``keys``) the key alone decides. It is checked before anything of a body is read, for every
route that is not in :data:`OPEN`. vLLM's own authentication leaves all routes open that do not begin with ``/v1``,
``/v2``, ``/inference`` or ``/cohere``; some of these generate, and some stop the server. Here the routes that clients
need are listed, and all others need the admin key.
"""

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sloserve.core.clock import Clock
from sloserve.core.errors import Forbidden, Unauthorized
from sloserve.core.slo import SLO, Targets
from sloserve.scheduler.server_keys import ServerTenant, read_server_keys
from sloserve.scheduler.settings import ADMIN_KEY, PluginSettings
from sloserve.vllm_plugin.server.stated import warn_operator
from sloserve.wire.asgi import Scope, key_in, route_path
from sloserve.wire.headers import HeaderRules
from sloserve.wire.in_flight import REQUESTS
from sloserve.wire.keys import WatchedKeys
from sloserve.wire.peers import TrustedProxies, peer_of
from sloserve.wire.resolve import resolve_headers, stated_slo

Headers = Iterable[tuple[bytes, bytes]]

OPEN: Final = frozenset({"/health", "/ping", "/version"})
"""Routes of vLLM that need no key: they say whether the server is alive, and which version it has."""
_FIGURES: Final = ("/metrics", "/load")
"""Routes for a tenant with ``metrics: true``."""
_OPERATORS: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/inference/v1/abort_requests"})
"""Routes that change the server for all tenants, though they stand below a prefix of clients' routes."""
_CLIENTS: Final = (
    *("/v1", "/v2", "/inference", "/cohere", "/tokenize", "/detokenize", "/tokenizer_info", "/invocations"),
    *("/pooling", "/classify", "/score", "/rerank", "/generative_scoring", REQUESTS.rstrip("/")),
)
"""Routes that a tenant may use, and all below them."""

_NO_KEY: Final = "no key of this server is shown; send one as Authorization: Bearer KEY, or as x-api-key: KEY"


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of one request.

    Args:
        scope: The request, without headers that name another tenant.
        rules: Rules by which its headers are read.
        tenant: The tenant of its key; ``None`` without keys, and on routes that need none.
    """

    scope: Scope
    rules: HeaderRules
    tenant: ServerTenant | None = None


class Callers:
    """Knows the senders of requests by the settings of a server."""

    def __init__(self, settings: PluginSettings, clock: Clock) -> None:
        """Read the file of keys, if there is one. Raises: ConfigError if the file has a fault."""
        self.follow(settings)
        self._keys: WatchedKeys[ServerTenant] | None = None
        self._admin_key = os.fsencode(os.environ.get(ADMIN_KEY, ""))
        self._warned = False
        if settings.keys is not None:
            classes = settings.classes
            self._keys = WatchedKeys(Path(settings.keys), lambda path: read_server_keys(path, classes), clock)

    def follow(self, settings: PluginSettings) -> None:
        """Know the senders of the requests to come by other settings; the file of keys stays."""
        self._rules, self._stated = settings.rules, settings.header_rules
        promises = settings.admission.promises == "gateway"
        self._of_proxies = replace(settings.header_rules, trusts_gateway=promises, trusts_proxy=True)
        self._unstated = replace(settings.header_rules, tenant_headers=())
        self._proxies = TrustedProxies(settings.trusted_proxies)

    @property
    def has_keys(self) -> bool:
        """Whether requests need keys."""
        return self._keys is not None

    def caller(self, scope: Scope) -> Caller:
        """Return the sender of a request. Raises: Unauthorized, Forbidden."""
        if self._keys is None:
            return Caller(scope, self._rules_for(scope))
        path = route_path(scope)
        if path in OPEN:
            return Caller(scope, self._unstated)
        named = self._stated.tenant_names
        scope = {**scope, "headers": [header for header in scope["headers"] if header[0] not in named]}
        key = key_in(scope["headers"])
        if self._admin_key and secrets.compare_digest(key, self._admin_key) and not is_clients(path):
            return Caller(scope, self._unstated)
        tenant = self._keys.tenant_of(key)
        if tenant is None:
            raise Unauthorized(_NO_KEY)
        if _is_below(path, _FIGURES):
            if not tenant.metrics:
                raise Forbidden(f"{path}: your key may not read it; in the file of keys, metrics: true allows it")
        elif not is_clients(path):
            raise Forbidden(f"{path}: this route is not for clients; it needs the admin key")
        return Caller(scope, self._unstated, tenant)

    def tenants(self) -> Iterable[ServerTenant]:
        """Return all tenants of the file of keys."""
        return () if self._keys is None else self._keys

    def classify(self, headers: Headers, peer: Any) -> tuple[SLO, str | None]:
        """Return the SLO and the tenant of a request by its headers and the address of its peer.

        A request without a key will be refused, and has the default class.
        """
        if self._keys is None:
            return resolve_headers(
                self._rules, self._of_proxies if self._proxies.trust(peer) else self._unstated, headers
            )
        tenant = self._keys.tenant_of(key_in(headers))
        if tenant is None:
            return self._rules.classes.slo(None, Targets()), None
        return resolve_headers(self._rules.held_to(tenant.slo_class), self._unstated, headers, tenant.name)

    def stated_class(self, caller: Caller) -> str | None:
        """Return the class that the headers of a request name, as its tenant may have it; ``None`` if they name none.

        Args:
            caller: Sender of the request, which is refused before its body is read.
        """
        tenant = caller.tenant
        rules = self._rules if tenant is None else self._rules.held_to(tenant.slo_class)
        name = None if tenant is None else tenant.name
        slo = stated_slo(rules, caller.rules, caller.scope["headers"], name)
        return None if slo is None else slo.slo_class.name

    def _rules_for(self, scope: Scope) -> HeaderRules:
        """Return the rules for headers of a request without a key, and warn of a tenant that does not count."""
        peer = peer_of(scope)
        if self._proxies.trust(peer):
            return self._of_proxies
        names = self._stated.tenant_names
        stated = next((name for name, _ in scope["headers"] if name in names), None)
        if stated is None:
            return self._stated
        if not self._warned:
            self._warned = True
            where = "another machine" if peer is None else peer[0]
            warn_operator(
                f"a header ({stated.decode('latin-1')}) from {where} names a tenant and is ignored: only proxies in "
                "trusted_proxies may name one; add the proxy's address, or '*' if only the proxy reaches this server"
            )
        return self._unstated


def is_clients(path: str) -> bool:
    """Return whether a tenant's key opens a route.

    Starlette's router takes ``/route`` with a line feed at its end for ``/route``, since that matches ``$``. No route
    has such characters, so that a path with one is no client's.
    """
    return path.isprintable() and path not in _OPERATORS and _is_below(path, _CLIENTS)


def _is_below(path: str, routes: Iterable[str]) -> bool:
    return any(path == route or path.startswith(f"{route}/") for route in routes)
