"""Encode a request as HTTP (path, headers and body) before the run, so that sending costs little."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO
from sloserve.core.tasks import TaskCall

REPORT_HEADER = "x-slo-report"
TENANT_HEADER = "x-tenant-id"
"""Header that names the tenant, for servers and gateways that read one."""
TASK_ID, TASK_E2E_MS = "x-slo-task-id", "x-slo-task-e2e-ms"
TASK_CALLS, TASK_LAST = "x-slo-task-calls", "x-slo-task-last"
"""Headers that state the task of a request, for servers that read them."""

Message = dict[str, str]
"""A message of a chat: its role and its content."""
Prompt = list[int] | str | list[Message]
"""A prompt as token ids, as text, or as the messages of a chat."""


class Api(StrEnum):
    """One of OpenAI's APIs, to which requests are sent."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        return "/v1/completions" if self is Api.COMPLETIONS else "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class SLOFields:
    """The SLO of a request as headers and fields of the body."""

    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PayloadSettings:
    """Settings that all requests of a run share.

    Args:
        ignore_eos: Outputs have exactly the workload's length (a field of vLLM's).
        continuous_usage: Each chunk states how many tokens there are so far (a field of vLLM's).
        state_slo: How SLOs are stated to the server; ``None`` to leave them out.
        report: Sloserve's server is asked how the request fared.
        return_token_ids: The server is asked for the ids of the output's tokens (a field of vLLM's).
        headers: Further headers of each request.
    """

    model: str
    api: Api = Api.COMPLETIONS
    ignore_eos: bool = True
    continuous_usage: bool = True
    state_slo: Callable[[SLO], SLOFields] | None = None
    report: bool = False
    return_token_ids: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Payload:
    """One request, ready to be sent."""

    request: WorkloadRequest
    path: str
    headers: dict[str, str]
    content: bytes


def task_headers(call: TaskCall, from_s: float) -> dict[str, str]:
    """Return the headers that state the task of a request.

    Args:
        call: The task, with a deadline in seconds from the start of the run.
        from_s: Time of the task's first call in seconds from the start of the run: the server counts from it.
    """
    headers = {TASK_ID: call.key}
    if call.due_s is not None:
        headers[TASK_E2E_MS] = str(max(1, round(1e3 * (call.due_s - from_s))))
    if call.calls is not None:
        headers[TASK_CALLS] = str(call.calls)
    return headers | ({TASK_LAST: "1"} if call.last else {})


def payload(request: WorkloadRequest, prompt: Prompt, settings: PayloadSettings) -> Payload:
    """Return ``request`` with ``prompt`` as a streamed request for as many tokens as the workload states."""
    body: dict[str, Any] = {
        "model": settings.model,
        "stream": True,
        "stream_options": {"include_usage": True}
        | ({"continuous_usage_stats": True} if settings.continuous_usage else {}),
    }
    if settings.api is Api.CHAT:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        body |= {"messages": messages, "max_completion_tokens": request.output_tokens}
    else:
        body |= {"prompt": prompt, "max_tokens": request.output_tokens}
    if settings.ignore_eos:
        body["ignore_eos"] = True
    if settings.return_token_ids:
        body["return_token_ids"] = True
    headers = {"content-type": "application/json", **settings.headers}
    if settings.state_slo is not None:
        stated = settings.state_slo(request.slo)
        headers |= stated.headers
        body |= stated.body
    if request.tenant:
        headers[TENANT_HEADER] = request.tenant
    if settings.report:
        headers[REPORT_HEADER] = "1"
    return Payload(request, settings.api.path, headers, json.dumps(body, separators=(",", ":")).encode())
