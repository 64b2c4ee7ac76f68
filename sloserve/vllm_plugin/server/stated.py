"""Read what a request states: its SLO in headers, body and priority, and its prompt.

A statement that no policy can use is reported.
"""

import functools
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from sloserve.core.errors import InvalidRequest
from sloserve.engine.metrics import collectors
from sloserve.scheduler.registry import parse_policy, policy_class
from sloserve.scheduler.settings import PluginSettings
from sloserve.vllm_plugin.server.engine_pages import EnginePages
from sloserve.wire import context
from sloserve.wire.body import BodyFields
from sloserve.wire.context import HTTPContext
from sloserve.wire.headers import HeaderFields
from sloserve.wire.keys import KeyTenant
from sloserve.wire.resolve import Resolved, resolve
from sloserve.wire.tasks import SESSION

logger = logging.getLogger(__name__)

LEAST_PRIORITY, MOST_PRIORITY = -(2**63), 2**63 - 1
"""vLLM's numeric priority, of which the engine keeps 64 bits."""
_NO_KEY: Final = KeyTenant("")


class StatedSLOs:
    """Reads the SLOs of requests by the server's rules."""

    def __init__(
        self,
        settings: PluginSettings,
        metrics: collectors.FrontEndMetrics,
        pages: EnginePages,
        count_invalid: Callable[[], None],
    ) -> None:
        """Read by the rules of ``settings``.

        Args:
            settings: Settings of the server.
            metrics: Metrics, which count headers that are ignored.
            pages: Pages of the engines, which say what policy is at work.
            count_invalid: Called for each request that cannot be served as it is stated.
        """
        self._rules = settings.rules
        self._policy = settings.policy
        self._metrics, self._count_invalid = metrics, count_invalid
        self._pages = pages
        self._needs_key = settings.keys is not None

    def follow(self, settings: PluginSettings) -> None:
        """Read the requests to come by other settings."""
        self._rules = settings.rules

    def check_key(self) -> None:
        """Raise vLLM's error for 500 if the server needs keys, and no middleware of ours has checked the request's."""
        if self._needs_key and context.key_tenant.get() is None:
            from vllm.exceptions import GracefulHTTPError

            warn_operator(
                "requests are refused, since the setting keys is set and nothing checks keys: give vLLM "
                "--middleware sloserve.api.middleware.SLOMiddleware, or use sloserve serve"
            )
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            raise GracefulHTTPError("the server cannot check keys; its log says why", status)

    def read(
        self, http: HTTPContext | None, sampling_params: Any, priority: int, session_id: str | None = None
    ) -> Resolved:
        """Return the SLO of a request, which is written where the engine finds it, and its task.

        Args:
            http: Context of the HTTP request; ``None`` for a request that did not come through our middleware.
            sampling_params: vLLM's sampling parameters, in which the SLO is written.
            priority: vLLM's number.
            session_id: Session of the request, as vLLM read it; counts only without our middleware.

        Raises: vLLM's error for 400 where an SLO cannot be read.
        """
        with self._refusing():
            if http is not None and http.error is not None:
                raise http.error
            if http is None:  # a websocket states nothing, and is held to the class of its key
                tenant = context.key_tenant.get() or _NO_KEY
                sessions = {} if session_id is None else {SESSION: session_id}
                headers, body = HeaderFields(tenant=tenant.name), BodyFields(sessions=sessions)
                held_to = tenant.slo_class
            else:
                headers, body, held_to = http.headers, http.body, http.slo_class
            resolved = resolve(self._rules.held_to(held_to), sampling_params.extra_args, headers, body, priority)
            if headers.ignored:
                self._metrics.ignored(headers.ignored)
            if priority != 0:
                self._check_priority(priority)
        sampling_params.extra_args = resolved.xargs
        if http is not None:
            http.resolved(resolved)
        return resolved

    def check_none(self, http: HTTPContext) -> None:
        """Check a request of a route that keeps no SLO.

        Raises: vLLM's error for 400 where it states one, or misspells it.
        """
        with self._refusing():
            http.check_no_slo()
            if http.headers.ignored:
                self._metrics.ignored(http.headers.ignored)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Count what cannot be served as it is stated, and raise it as vLLM's error for 400."""
        try:
            yield
        except InvalidRequest as error:
            from vllm.exceptions import VLLMValidationError

            self._count_invalid()
            raise VLLMValidationError(str(error), parameter=error.param) from error.to_keep()

    def _check_priority(self, priority: int) -> None:
        """Raise InvalidRequest for a priority that the policy at work would ignore, or that is no 64-bit number."""
        if not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
            raise InvalidRequest("priority", priority, f"a whole number from {LEAST_PRIORITY} to {MOST_PRIORITY}")
        for text in {page.snapshot().policy for page in self._pages.found()} or {self._policy}:
            name, _ = parse_policy(text)
            if not _uses_priority(name):
                warn_operator(f"a client states a priority, which policy {name!r} cannot use; --policy priority can")
                allowed = f"0, all that policy {name!r} can use; state a class or targets"
                raise InvalidRequest("priority", priority, allowed)


def tenant_of(http: HTTPContext | None) -> str | None:
    """Return the tenant of a request; a websocket, which has no context, has the tenant of its key."""
    if http is not None:
        return http.headers.tenant
    tenant = context.key_tenant.get()
    return None if tenant is None else tenant.name


@functools.cache
def _uses_priority(policy: str) -> bool:
    return "priority" in policy_class(policy).needs


@functools.cache
def warn_operator(message: str) -> None:
    """Log a message the first time: clients learn what they can do, operators which setting would help."""
    logger.warning("%s", message)


def prompt_tokens(prompt: Any) -> int | None:
    """Return the length of the prompt for ``AsyncLLM.generate``; ``None`` if it is not known yet, as of text."""
    get = prompt.get if isinstance(prompt, dict) else functools.partial(getattr, prompt)
    ids, embeddings = get("prompt_token_ids", None), get("prompt_embeds", None)
    if ids:
        return len(ids)
    return None if embeddings is None else len(embeddings)  # a row for each token


def prompt_text(prompt: Any) -> str | None:
    """Return the text of the prompt for ``AsyncLLM.generate``, if it still has one."""
    text = prompt.get("prompt") if isinstance(prompt, dict) else getattr(prompt, "prompt", None)
    return text if isinstance(text, str) else None


def key_of(tenant: str | None, prompt: Any, sampling_params: Any) -> Hashable | None:
    """Return a key that is equal when a client sends the same request again.

    It consists of the tenant, the prompt with vLLM's digests of the pictures, sounds and the like in it, and what the
    request asks for. Two requests that are alike in all of this are interchangeable: either may have the place of the
    other. ``None`` for a prompt of which not all is token ids, text or has a digest, as of embeddings: all of these
    would look alike.
    """
    get = prompt.get if isinstance(prompt, dict) else functools.partial(getattr, prompt)
    ids, digests = get("prompt_token_ids", None), get("mm_hashes", None)
    text = prompt if isinstance(prompt, str) else prompt_text(prompt)
    is_opaque = get("prompt_embeds", None) is not None or (digests is None and get("multi_modal_data", None))
    if is_opaque or (not ids and text is None):
        return None
    items = tuple((kind, *found) for kind, found in sorted((digests or {}).items()))
    encoded = tuple(get("encoder_prompt_token_ids", None) or ())
    asked = (getattr(sampling_params, name, None) for name in ("max_tokens", "n", "seed", "temperature"))
    return hash((tenant, text if ids is None else tuple(ids), items, encoded, *asked))
