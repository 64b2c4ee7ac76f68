"""A request as the gateway reads it: its model, its SLO, its prompt, and what the engine gets."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sloserve.core.errors import InvalidRequest
from sloserve.core.promises import Promised
from sloserve.core.slo import SLO
from sloserve.fleet.client_routes import AUDIO, GENERATING, RESPONSES, SALTED
from sloserve.fleet.gateway.body_changes import appended, changed, changed_form
from sloserve.fleet.gateway.body_reading import (
    CONTENT_TYPE,
    NO_PROMPT,
    Prompt,
    ReadBody,
    form_to_send,
    of_form,
    own_salt,
    previous_response,
    recording,
    to_send,
)
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.prefixes import Beginning, beginnings
from sloserve.fleet.sizes import limit_on, outputs_asked
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.asgi import first
from sloserve.wire.body import BYTES_PER_TOKEN, fields_of, parse
from sloserve.wire.headers import (
    COUNTING_DOWN,
    FINAL,
    PRIORITY,
    PROMISED,
    REPORT,
    REQUEST_ID,
    TENANT,
    TTL,
    UPDATES,
    HeaderFields,
    given_header,
    read_headers,
    stating,
)
from sloserve.wire.held import HEADER as HELD
from sloserve.wire.held import held_header, left_ms
from sloserve.wire.lenient import flag, number
from sloserve.wire.resolve import Rules, resolve
from sloserve.wire.tasks import StatedTask
from sloserve.wire.xargs import PROMISE, PROMISE_FALLBACK, stated_output_tokens

_PASSED: Final = ("content-type", "accept", "traceparent", "tracestate", "baggage")
"""Headers that go on unchanged. All other headers of a client end here."""


@dataclass(slots=True)
class GatewayRequest:
    """One request.

    Args:
        tenant: Tenant that sent it.
        route: Route of the engine.
        arrival_s: Monotonic time of its arrival in seconds.
        model: Model that the client names.
        body: Body that the engine gets.
        slo: Targets after the tenant's limits.
        xargs: Arguments that go on in headers, which win over the body; ``None`` if the request states no SLO.
        headers: Headers that go on, without the headers of the SLO.
        ttl_s: Most seconds from arrival to the first token; ``None`` for no limit.
        ignored: Names of SLO headers that were ignored.
        num_outputs: Number of outputs that it asks for.
        streamed: Whether the output is streamed to the client.
        prompt_tokens: Estimated tokens of its prompt.
        max_tokens, output_tokens: Limit and expected number of output tokens, as the client states them.
        prompt: Prompt, as bytes of the body.
        task: Value of its task header.
        network_s: Network time in seconds that its header states.
        stated_task: The task of many calls that it is one of; ``None`` if it states none.
        task_due_s: Deadline of that task in epoch seconds, once its first call is known; ``None`` for none.
        reported_task: What other gateways are to know of that task, once the request was let in; ``None`` for nothing.
        salt: Salt of its prompt in prefix caches; ``None`` for none.
        previous: Id of the stored response that it continues; ``None`` for none.
        is_form: Whether its body is a form.
        updates: Whether its client asks for comments while it waits.
        is_recorded: Whether engines record requests, and are to know how long it was held.
    """

    tenant: Tenant
    route: str
    arrival_s: float
    model: Any
    body: bytes
    slo: SLO
    xargs: Mapping[str, Any] | None
    headers: list[tuple[str, str]]
    ttl_s: float | None
    ignored: tuple[str, ...]
    num_outputs: int
    streamed: bool
    prompt_tokens: int
    max_tokens: int | None
    output_tokens: int | None
    prompt: Prompt
    task: str | None = None
    network_s: float = 0.0
    stated_task: StatedTask | None = None
    task_due_s: float | None = None
    reported_task: str | None = None
    salt: str | None = None
    previous: str | None = None
    is_form: bool = False
    promised: Promised | None = None
    why_no_promise: str | None = None
    updates: bool = False
    is_recorded: bool = False

    @property
    def slo_class(self) -> str:
        """Name of its class."""
        return self.slo.slo_class.name

    @property
    def most_output(self) -> int | None:
        """Most output tokens, or the number that its client expects; ``None`` if the client states neither."""
        return self.max_tokens if self.output_tokens is None else self.output_tokens

    def headers_after(self, late_s: float) -> list[tuple[str, str]]:
        """Return the headers for the engine; it arrives ``late_s`` seconds late, and its times are what is left.

        On a route that generates nothing the gateway alone keeps the SLO; an engine would refuse it there.
        """
        generates = self.route in GENERATING
        stated = dict(self.xargs or {}) if generates else {}
        if self.slo.promise is not None and generates:
            # The engine takes over what the gateway has promised. An older one confirms it, where it can.
            stated |= {PROMISE: self.promised.level, PROMISE_FALLBACK: 1} if self.promised else {PROMISE: 0}
            if self.promised is None:
                stated.pop(PROMISE_FALLBACK, None)
        if late_s > 0.0 and generates:
            for key, name in COUNTING_DOWN.items():
                if (target_s := getattr(self.slo.targets, name)) is not None:
                    stated[key] = left_ms(target_s, late_s)
        if self.stated_task is not None and generates:
            task, due_s = self.stated_task, self.task_due_s
            stated |= (task if due_s is None else replace(task, e2e_s=None, deadline_s=due_s)).keys()
        headers = self.headers + stating(stated)
        if self.promised is not None and generates:
            headers.append((PROMISED, given_header(self.promised.level, self.promised.first_after_s - late_s)))
        if self.is_recorded and late_s >= 1e-3 and generates:
            headers.append((HELD, held_header(late_s, self.slo.targets)))
        if self.ttl_s is not None:
            headers.append((TTL, str(left_ms(self.ttl_s, late_s))))
        return headers

    def beginnings(self, model: str) -> tuple[Beginning, ...]:
        """Return the beginnings of its prompt for a model, see :func:`sloserve.fleet.gateway.prefixes.beginnings`."""
        key, prompt = model if self.salt is None else f"{model}\n{self.salt}", self.prompt
        if prompt.before:
            key = f"{key}\n{hashlib.blake2b(prompt.before, digest_size=16).hexdigest()}"
        more = len(prompt.before) // BYTES_PER_TOKEN
        return tuple(one._replace(tokens=one.tokens + more) for one in beginnings(key, prompt.messages, prompt.text))

    def body_with(self, response_id: str | None) -> bytes:
        """Return the body that the engine gets, with the id of the response if it is one that engines store."""
        return self.body if response_id is None else appended(self.body, "request_id", response_id)

    def forget_body(self) -> None:
        """Release the body, which is not needed any more and takes memory."""
        self.body, self.prompt = b"", NO_PROMPT

    def to_model(self, model: str) -> None:
        """Change the model that the request asks for, as a chooser of models does."""
        self.model = model
        if self.is_form:
            stated = dict(self.headers)
            self.body, stated[CONTENT_TYPE] = changed_form(self.body, stated[CONTENT_TYPE], {"model": model})
            self.headers = list(stated.items())
        else:
            self.body = changed(self.body, lambda values: values.update(model=model))


Salt = Callable[[str, str | None], str | None]
"""Returns the ``cache_salt`` of a tenant's prompts, by the tenant's name and the salt that the client sent."""


def own_salts(tenant: str, own: str | None) -> str | None:
    """Return the salt that the client sent."""
    return own


class GatewayRequestReader:
    """Reads requests under the settings of a fleet.

    Args:
        settings: Settings of its engines.
        salt: Returns the salts of prompts; by default the ones that clients send.
    """

    def __init__(self, settings: PluginSettings, salt: Salt = own_salts) -> None:
        self._rules, self._salt, self._is_recorded = settings.rules, salt, settings.record_mib > 0
        # The key alone decides to which tenant a request belongs.
        self.header_rules = replace(settings.header_rules, tenant_headers=())
        sessions = (name.decode("latin-1") for name in self.header_rules.session_headers)
        self._passed = frozenset((*_PASSED, FINAL, *sessions))

    def read(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        tenant: Tenant,
        request_id: str,
        route: str,
        arrival_s: float = 0.0,
    ) -> GatewayRequest:
        """Read a request. Raises: InvalidRequest if it cannot be read."""
        headers = list(headers)
        fields = read_headers(headers, self.header_rules)
        fields.tenant = tenant.name
        form = recording(body, first(headers, CONTENT_TYPE.encode())) if route in AUDIO else None
        read = parse(body, ReadBody) if form is None else of_form(form)
        priority = _priority(headers, read.priority)
        xargs = read.vllm_xargs if isinstance(read.vllm_xargs, dict) else None
        in_body, rules = fields_of(read), self.rules_of(tenant)
        resolved = resolve(rules, xargs, fields, in_body, priority or 0)
        is_held = rules.tenants.get(tenant.name, rules.tenant_default) is not None
        is_plain = resolved.slo.slo_class.name.isascii()
        restating = resolved if (is_held and (in_body.fields or xargs)) or not is_plain else None
        salt = self._salt(tenant.name, own_salt(read)) if route in SALTED else None
        prompt = Prompt.of(read, route, len(body)) if form is None else Prompt.of_form(form)
        passed = self._passed_on(headers, fields, route)
        passed |= {REQUEST_ID: request_id, TENANT: tenant.name}
        if in_body.updates and route in GENERATING:
            passed[UPDATES] = "0"  # the gateway writes the comments: an engine's would count as its first byte
        if priority is not None:
            passed[PRIORITY] = str(priority)
        if form is None:
            body = to_send(body, read, in_body, route, restating, salt)
        else:
            body, passed[CONTENT_TYPE] = form_to_send(form, restating)
        return GatewayRequest(
            tenant=tenant,
            route=route,
            arrival_s=arrival_s,
            model=read.model,
            body=body,
            slo=resolved.slo,
            xargs=resolved.xargs if is_plain else None,
            headers=list(passed.items()),
            ttl_s=fields.ttl_s,
            ignored=fields.ignored,
            num_outputs=outputs_asked(read.n, route),
            streamed=flag(read.stream) is True,
            prompt_tokens=max(prompt.size // BYTES_PER_TOKEN, 1),
            max_tokens=limit_on(route, read.max_tokens, read.max_completion_tokens, read.max_output_tokens),
            output_tokens=stated_output_tokens(resolved.xargs) if route in GENERATING else 1,
            prompt=prompt,
            task=fields.task,
            network_s=fields.network_s or 0.0,
            stated_task=resolved.task,
            salt=salt,
            previous=previous_response(read) if route == RESPONSES else None,
            is_form=form is not None,
            updates=in_body.updates if fields.updates is None else fields.updates,
            is_recorded=self._is_recorded,
        )

    def _passed_on(self, headers: Iterable[tuple[bytes, bytes]], fields: HeaderFields, route: str) -> dict[str, str]:
        """Return the client's headers that go on, by name."""
        passed = {
            name: value.decode("latin-1") for raw, value in headers if (name := raw.decode("latin-1")) in self._passed
        }
        if fields.report and route in GENERATING:
            passed[REPORT] = "1"
        return passed

    def rules_of(self, tenant: Tenant) -> Rules:
        """Return the deployment's rules, with the tenant held to the class that its key has."""
        return self._rules.held_to(tenant.slo_class)


def _priority(headers: Iterable[tuple[bytes, bytes]], in_body: object) -> int | None:
    """Return vLLM's priority as vLLM reads it: from its header if that is a number, otherwise from the body.

    Raises: InvalidRequest for one in the body that vLLM refuses.
    """
    stated = number(in_body)
    if in_body is not None and stated is None:
        raise InvalidRequest("priority", in_body, "a whole number")
    text = next((value for name, value in headers if name == PRIORITY.encode()), None)
    try:
        return int(text) if text is not None else stated
    except ValueError:
        return stated
