"""A request as the gateway reads it: its model, its SLO, what the engine gets, and what a model must support."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import SLO
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.prefixes import part
from sloserve.fleet.sizes import GENERATING, output_limit, outputs_asked
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.body import BYTES_PER_TOKEN, Body, fields_of, parse
from sloserve.wire.headers import (
    COUNTING_DOWN,
    FINAL,
    PRIORITY,
    REPORT,
    REQUEST_ID,
    TENANT,
    TTL,
    left_ms,
    read_headers,
    stating,
)
from sloserve.wire.lenient import flag, number
from sloserve.wire.resolve import XARGS, Resolved, Rules, resolve
from sloserve.wire.tasks import StatedTask
from sloserve.wire.xargs import stated_output_tokens

_PASSED: Final = ("content-type", "accept", "traceparent", "tracestate", "baggage")
"""Headers that go on unchanged. All other headers of a client end here."""


class _Read(Body):
    """Fields of a body that decide where it goes."""

    model: Any = None
    stream: Any = None
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    priority: Any = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


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
        messages, prompt: Bytes of these fields in the body, empty if it does not have them.
        task: Value of its task header.
        network_s: Network time in seconds that its header states.
        stated_task: The task of many calls that it is one of; ``None`` if it states none.
        task_due_s: Deadline of that task in epoch seconds, once its first call is known; ``None`` for none.
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
    messages: memoryview
    prompt: memoryview
    task: str | None = None
    network_s: float = 0.0
    stated_task: StatedTask | None = None
    task_due_s: float | None = None

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
        if late_s > 0.0 and generates:
            for key, name in COUNTING_DOWN.items():
                if (target_s := getattr(self.slo.targets, name)) is not None:
                    stated[key] = left_ms(target_s, late_s)
        if self.stated_task is not None and generates:
            task, due_s = self.stated_task, self.task_due_s
            stated |= (task if due_s is None else replace(task, e2e_s=None, deadline_s=due_s)).keys()
        headers = self.headers + stating(stated)
        if self.ttl_s is not None:
            headers.append((TTL, str(left_ms(self.ttl_s, late_s))))
        return headers

    def forget_body(self) -> None:
        """Release the body, which is not needed any more and takes memory."""
        self.body = b""
        self.messages = self.prompt = memoryview(b"")

    def to_model(self, model: str) -> None:
        """Change the model that the request asks for, as a chooser of models does."""
        self.model = model
        self.body = _changed(self.body, lambda values: values.update(model=model))


class GatewayRequestReader:
    """Reads requests under the settings of a fleet."""

    def __init__(self, settings: PluginSettings) -> None:
        self._rules = settings.rules
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
        read = parse(body, _Read)
        in_body = fields_of(read)
        passed = {
            name: value.decode("latin-1") for raw, value in headers if (name := raw.decode("latin-1")) in self._passed
        }
        priority = _priority(headers, read.priority)
        xargs = read.vllm_xargs if isinstance(read.vllm_xargs, dict) else None
        rules = self.rules_of(tenant)
        resolved = resolve(rules, xargs, fields, in_body, priority or 0)
        is_held = rules.tenants.get(tenant.name, rules.tenant_default) is not None
        in_headers = resolved.xargs
        if (is_held and (in_body.fields or xargs)) or not resolved.slo.slo_class.name.isascii():
            body = _restated(body, resolved)
            in_headers = in_headers if resolved.slo.slo_class.name.isascii() else None
        passed |= {REQUEST_ID: request_id, TENANT: tenant.name}
        if priority is not None:
            passed[PRIORITY] = str(priority)
        if fields.report and route in GENERATING:
            passed[REPORT] = "1"
        messages, prompt = part(read.messages), part(read.prompt)
        size = len(messages) or len(prompt) or len(body)
        return GatewayRequest(
            tenant=tenant,
            route=route,
            arrival_s=arrival_s,
            model=read.model,
            body=body,
            slo=resolved.slo,
            xargs=in_headers,
            headers=list(passed.items()),
            ttl_s=fields.ttl_s,
            ignored=fields.ignored,
            num_outputs=outputs_asked(read.n, route),
            streamed=flag(read.stream) is True,
            prompt_tokens=max(size // BYTES_PER_TOKEN, 1),
            max_tokens=output_limit(read.max_tokens, read.max_completion_tokens),
            output_tokens=stated_output_tokens(resolved.xargs),
            messages=messages,
            prompt=prompt,
            task=fields.task,
            network_s=fields.network_s or 0.0,
            stated_task=resolved.task,
        )

    def rules_of(self, tenant: Tenant) -> Rules:
        """Return the deployment's rules, with the tenant held to the class that its key has."""
        return self._rules.held_to(tenant.slo_class)


def _restated(body: bytes, resolved: Resolved) -> bytes:
    """Return a body that states no more than its tenant may."""

    def restate(values: dict[str, Any]) -> None:
        slo = values.pop("slo", None)
        slo = msgspec.json.decode(slo) if isinstance(slo, msgspec.Raw) else slo
        if isinstance(slo, dict) and "report" in slo:
            values["slo"] = {"report": slo["report"]}
        values.pop(XARGS, None)
        if resolved.xargs:
            values[XARGS] = dict(resolved.xargs)

    return _changed(body, restate)


def _changed(body: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a body with some of its fields changed; the others stay as they are written, numbers of any kind too."""
    try:
        raw: dict[str, Any] = {**msgspec.json.decode(body, type=dict[str, msgspec.Raw])}
        change(raw)
        return msgspec.json.encode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # an extension of JSON, which engines read too
        values = json.loads(body)
        change(values)
        return json.dumps(values).encode()


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


TOOLS: Final = "tools"
GRAMMAR: Final = "grammar"
MEDIA: Final = {"image": "images", "audio": "audio", "video": "video"}
"""Feature that a part of a message needs, by a word in its type, as ``image_url``."""
MEDIA_TOKENS: Final = 1024
"""Tokens assumed for each such part: its bytes say nothing of its tokens."""


class _Asked(Body):
    """Fields of a body that say what a model must support; read only where there are models to choose from."""

    messages: Any = None
    prompt: Any = None
    tools: Any = None
    tool_choice: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a request needs of a model.

    Args:
        features: Features that a model must support.
        prompt_tokens: Estimated tokens of all its prompts.
        longest_tokens: Estimated tokens of the longest of several prompts, since each has a context of its own.
        conversation: Key that is equal for all requests of one conversation; ``None`` for a request that has none.
        begins: Whether it is the first request of its conversation.
    """

    features: frozenset[str]
    prompt_tokens: int
    longest_tokens: int
    conversation: str | None
    begins: bool


def needs_of(request: GatewayRequest) -> Needs:
    """Read the needs of a request from its body. Raises: InvalidRequest if the body cannot be read."""
    read = parse(request.body, _Asked)
    messages = [one for one in read.messages if isinstance(one, dict)] if isinstance(read.messages, list) else []
    features, media = _media(messages)
    if read.tools and read.tool_choice != "none":
        features.add(TOOLS)
    formats = read.response_format if isinstance(read.response_format, dict) else {}
    grammars = (read.structured_outputs, read.guided_json, read.guided_regex, read.guided_choice, read.guided_grammar)
    if formats.get("type", "text") != "text" or any(grammar is not None for grammar in grammars):
        features.add(GRAMMAR)
    text_tokens = request.prompt_tokens - len(json.dumps(media)) // BYTES_PER_TOKEN
    prompt_tokens = max(text_tokens, 1) + MEDIA_TOKENS * len(media)
    roles = [one.get("role") for one in messages]
    begin = messages[: roles.index("user") + 1] if "user" in roles else messages
    longest = math.ceil(prompt_tokens * _longest_share(read.prompt))
    return Needs(
        frozenset(features), prompt_tokens, longest, json.dumps(begin) if begin else None, "assistant" not in roles
    )


def _longest_share(prompt: Any) -> float:
    """Return the longest prompt's share of the length of all; 1 if there is one prompt."""
    sizes = [len(one) for one in prompt if isinstance(one, str | list)] if isinstance(prompt, list) else []
    return max(sizes) / total if (total := sum(sizes)) else 1.0


def _media(messages: list[dict[str, Any]]) -> tuple[set[str], list[Any]]:
    """Return what the parts of the messages that are not text need, and these parts.

    vLLM takes parts without a type, too. A body may have 100,000s of parts, and the event loop waits: each word is
    looked for once in each kind of part.
    """
    contents = [content for one in messages if isinstance(content := one.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    kinds = [str(part["type"]) if "type" in part else " ".join(part) for part in parts]
    needed = {kind: {needed for word, needed in MEDIA.items() if word in kind} for kind in set(kinds)}
    media = [part for kind, part in zip(kinds, parts, strict=True) if needed[kind]]
    return set().union(*needed.values()), media
