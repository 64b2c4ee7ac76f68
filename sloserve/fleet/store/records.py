"""Rows of the store as values. Times are the store's own clock in epoch seconds; ids of ours are 128 random bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class RequestState(StrEnum):
    """Where a durable request stands. It moves right only, but that a lost claim puts it back into the queue."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request to keep until it has a result.

    Args:
        id: ours, never the client's; a second request with it is taken for the same one.
        tenant: whose it is.
        model: the model that it asks for.
        slo_class: name of its service class.
        group: the request group that it was put in.
        prompt_tokens: as far as it is known.
        output_tokens: expected.
        deadline_s: in seconds from now; ``None`` for none. It expires then if it is not being served.
        body: as it is sent to an engine.
        route: of the engine's, as ``/v1/chat/completions``.
        batch: the batch that it belongs to, if any.
        line: its line in the batch's file, from 1.
        custom_id: the client's name for it within its batch.
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

    attempt: how often it was claimed, this time included; a result is taken only with the newest one. route: of the
    engine's. slo_class: its name. left_s: until its deadline, ``None`` for none. progress: what an earlier attempt left
    to go on from.
    """

    id: str
    attempt: int
    body: bytes
    route: str
    slo_class: str
    left_s: float | None
    progress: bytes | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Requests that one agent took in one go, and holds as long as it renews the lease.

    alone: nothing else may run beside them on their engine, since they are suspected to have killed one.
    """

    id: int
    requests: tuple[Claimed, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How one attempt ended. status: the HTTP status that the client sees on its line."""

    id: str
    attempt: int
    state: RequestState
    status: int
    body: bytes


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
class Agent:
    """One agent's last sign of life. age_s: how long ago it was."""

    id: str
    state: Mapping[str, Any]
    age_s: float


@dataclass(frozen=True, slots=True)
class HostRenewed:
    """Answer to the agent of a host. kept: whether it still is that. is_told_to_end: whether it shall drain and end."""

    kept: bool
    is_told_to_end: bool = False


@dataclass(frozen=True, slots=True)
class HostTaken:
    """Answer to a process that would be the agent of a host.

    Args:
        taken: whether it is that now.
        before: the other process that was, if there was one; it still is where ``taken`` is false.
        until_s: until when that one's lease ran.
    """

    taken: bool
    before: str | None
    until_s: float


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The plan in force: the version-th that its term has written."""

    term: int
    version: int
    plan: Mapping[str, Any]


class BatchState(StrEnum):
    """OpenAI's states of a batch, but for the first: a batch that is kept, and not known to be, is not run."""

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
        id, tenant: ours; whose it is.
        endpoint: the route that its lines go to.
        window: its completion window as the client wrote it.
        input_file, output_file, error_file: ids of files, where there are any.
        state: see :class:`BatchState`.
        stamps: when it entered each state, epoch seconds.
        due_s: when it expires, epoch seconds.
        lines: requests in it, once it is validated. completed, failed: of them, so far.
        metadata: the client's own.
        errors: what validation found.
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


@dataclass(frozen=True, slots=True)
class File:
    """A file's metadata; its bytes lie in a folder. expires_s: epoch seconds, ``None`` for never."""

    id: str
    tenant: str
    name: str
    purpose: str
    bytes: int
    created_s: float
    expires_s: float | None = None
