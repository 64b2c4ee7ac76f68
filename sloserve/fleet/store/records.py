"""Rows of the store as values. Times are epoch seconds of the store's clock; the fleet's ids are 128 random bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class RequestState(StrEnum):
    """The state of a durable request. It moves only to the right, except that a lost claim requeues the request."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class DurableRequest:
    """A request to keep until it has a result.

    Args:
        id: The fleet's id, never the client's; a second request with it is taken for the same one.
        tenant: The tenant that owns the request.
        model: The model that it asks for.
        slo_class: Name of its service class.
        group: The request group that it was put in.
        prompt_tokens: Tokens of its prompt, as far as they are known.
        output_tokens: Expected number of output tokens.
        deadline_s: Seconds from now until its deadline, or ``None`` if it has none. It expires then if it is not being
            served.
        body: Body as it is sent to an engine.
        route: Route of the engine, such as ``/v1/chat/completions``.
        batch: The batch that it belongs to, if any.
        line: Number of its line in the batch's file, counted from 1.
        custom_id: The client's name for it within its batch.
    """

    id: str
    tenant: str
    model: str
    slo_class: str
    group: int
    body: bytes
    prompt_tokens: int = 0
    output_tokens: float = 0.0
    deadline_s: float | None = None
    batch: str | None = None
    line: int | None = None
    custom_id: str | None = None
    route: str = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request that an agent serves now.

    Args:
        attempt: How often it was claimed, this time included; a result is accepted only with the newest attempt.
        route: Route of the engine.
        slo_class: Name of its service class.
        left_s: Seconds until its deadline, or ``None`` if it has none.
        progress: Partial work of an earlier attempt, to continue from.
        tenant: The tenant that owns the request.
    """

    id: str
    attempt: int
    body: bytes
    route: str
    slo_class: str
    left_s: float | None
    progress: bytes | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Requests that one agent took together, and holds as long as it renews the lease.

    Args:
        alone: Whether nothing else may run beside them on their engine, since they are suspected to have killed one.
    """

    id: int
    requests: tuple[Claimed, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class LineUse:
    """What a line of a batch used of the engines that served it.

    Args:
        tenant: The tenant that owns the line.
        prompt_tokens: Tokens of its prompt, 0 where the engine did not state them.
        output_tokens: Tokens of its output, with the tokens of earlier attempts from which it went on.
        engine_ms: Time that it was in an engine in its last claim, in ms.
    """

    tenant: str
    prompt_tokens: int
    output_tokens: int
    engine_ms: int


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one attempt.

    Args:
        status: The HTTP status that the client sees on its line.
        used: What the line used, counted for its tenant; ``None`` if it was sent to no engine.
    """

    id: str
    attempt: int
    state: RequestState
    status: int
    body: bytes
    used: LineUse | None = None


@dataclass(frozen=True, slots=True)
class QueuedSums:
    """Sums over the queued requests of one group, model and class. due and arrival: epoch seconds."""

    group: int
    model: str
    slo_class: str
    requests: int
    prompt_tokens: float
    output_tokens: float
    output_tokens2: float
    first_due_s: float | None
    last_due_s: float | None
    first_arrival_s: float


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """The last sign of life of one agent.

    Args:
        age_s: Seconds since the sign of life.
    """

    id: str
    state: Mapping[str, Any]
    age_s: float


@dataclass(frozen=True, slots=True)
class HostRenewed:
    """The store's response to a process that renews its hold on a host.

    Args:
        kept: Whether the process still is the agent of its host.
        must_end: Whether the process shall drain and end.
    """

    kept: bool
    must_end: bool = False


@dataclass(frozen=True, slots=True)
class HostTaken:
    """The store's response to a process that wants to be the agent of a host.

    Args:
        taken: Whether the process is the agent now.
        before: The other process that was the agent, if there was one; it still is if ``taken`` is false.
        until_s: Time at which the lease of that other process ended or ends.
    """

    taken: bool
    before: str | None
    until_s: float


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The plan in force, which is number ``version`` of its term."""

    term: int
    version: int
    plan: Mapping[str, Any]


class BatchState(StrEnum):
    """OpenAI's states of a batch, except the first: a batch that is kept, but not known to be kept, does not run."""

    UNCONFIRMED = "unconfirmed"
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED_STATES = (BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)
OPEN_STATES = (BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of OpenAI's Batch API.

    Args:
        id: Id that the fleet gave it.
        tenant: The tenant that owns it.
        endpoint: The route that its lines go to.
        window: Completion window as the client wrote it.
        input_file: Id of the file with its lines.
        output_file: Id of the file of responses, if there is one.
        error_file: Id of the file of errors, if there is one.
        state: See :class:`BatchState`.
        stamps: Time when it entered each state, in epoch seconds.
        due_s: Time when it expires, in epoch seconds.
        lines: Number of its requests, once it is validated.
        completed: Number of its requests that have completed up to now.
        failed: Number of its requests that have failed up to now.
        metadata: Metadata that the client gave.
        errors: Errors that validation found.
        outputs_kept_s: Seconds for which its files of results are kept, or ``None`` for as long as the fleet keeps any.
    """

    id: str
    tenant: str
    endpoint: str
    window: str
    input_file: str
    state: BatchState
    stamps: Mapping[str, float]
    due_s: float
    lines: int = 0
    completed: int = 0
    failed: int = 0
    output_file: str | None = None
    error_file: str | None = None
    metadata: Mapping[str, str] | None = None
    errors: tuple[Mapping[str, Any], ...] = ()
    outputs_kept_s: float | None = None


@dataclass(frozen=True, slots=True)
class File:
    """The metadata of a file; its bytes lie in a folder.

    Args:
        expires_s: Time when it expires, in epoch seconds, or ``None`` if it never does.
    """

    id: str
    tenant: str
    name: str
    purpose: str
    bytes: int
    created_s: float
    expires_s: float | None = None
