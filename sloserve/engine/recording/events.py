"""Events of a recording: numbers and salted names alone, no text, no token and no id of a request.

Times are epoch seconds of the engine's steady clock. A request is known by a number that the recorder hands out. Names
of tenants, tasks and adapters, and contents of prompts, are keyed hashes; the key is never written, so that equal names
are equal within one recording and mean nothing outside it. 0 stands for no name.
"""

from typing import Any, Final

import msgspec

from sloserve.wire.held import Held

FORMAT: Final = 1
"""Version of the events; a reader refuses others."""
STRETCH_TOKENS: Final = 64
"""Tokens of a prompt that one of its hashes stands for, as far as whole KV blocks allow."""
HASH_BYTES: Final = 8
UNKNOWN_MODEL: Final = "unknown"
"""Model of a request that a gateway refused before it knew the model, or that named none of its models."""
ENGINE, FRONT_END = "engine", "front end"
"""Processes that record: an engine, or an API process or gateway, which records what it refuses."""

SATURATED: Final = "rejected-saturated"
UNATTAINABLE: Final = "rejected-slo-unattainable"
UNPROMISED: Final = "rejected-promise"
INVALID: Final = "invalid-request"
STOPPING: Final = "shutting-down"
TENANT_LIMIT: Final = "tenant-limit"
BODY_TOO_LARGE: Final = "body-too-large"
BY_VLLM: Final = "refused-by-vllm"
EXPIRED: Final = "rejected-ttl-expired"
REFUSALS: Final = (
    SATURATED,
    UNATTAINABLE,
    UNPROMISED,
    INVALID,
    STOPPING,
    TENANT_LIMIT,
    BODY_TOO_LARGE,
    BY_VLLM,
    EXPIRED,
)
"""Reasons of a refusal; the words of the metrics and of ``x-slo-dropped-reason`` where they have one."""


STOP: Final = "stop"
LENGTH: Final = "length"
REPETITION: Final = "repetition"
STOP_STRING: Final = "stop-string"
ABORTED: Final = "aborted"
ABORTED_OR_STOP_STRING: Final = "aborted-or-stop-string"
FAILED: Final = "failed"
ENDS: Final = (STOP, LENGTH, REPETITION, STOP_STRING, ABORTED, ABORTED_OR_STOP_STRING, FAILED)
"""Ways in which a request ends. The API process finds stop strings and then aborts the request as if its client had
left: an engine alone knows only that a request without stop strings was aborted for another reason.
"""


class _Event(msgspec.Struct, array_like=True, gc=False):
    """An event as an array that begins with its tag, which is compact and has no names of fields."""


class SegmentHead(_Event, tag=0):
    """Facts of the engine, which begin each segment.

    Args:
        format: :data:`FORMAT`.
        at_s: When the segment begins.
        engine: Sizes and limits of the engine, see :func:`~sloserve.vllm_plugin.engine.recorded.engine_facts`.
        settings: Settings that decide what the scheduler does, with salted names of tenants.
        policy: Text of the policy at work.
        shadow_policy: Text of the shadow policy; ``None`` for none.
        stretch_tokens: Tokens that one hash of a prompt stands for.
        live: Numbers of the unfinished requests.
        process: :data:`ENGINE` or :data:`FRONT_END`, the process that records.
        lost: Events that its process had lost by then.
    """

    format: int
    at_s: float
    engine: dict[str, Any]
    settings: dict[str, Any]
    policy: str
    shadow_policy: str | None
    stretch_tokens: int
    live: list[int]
    process: str = ENGINE
    lost: int = 0


class Arrived(_Event, tag=1):
    """A request that the engine was given.

    Args:
        number: Number of the request.
        at_s: When it arrived at the server.
        class_id: Number of its class.
        ttft_s: Target in seconds, like the following; ``None`` for none.
        tds: Target in tokens per second; ``None`` for none.
        prompt_tokens: Tokens of its prompt.
        max_tokens: Most tokens of its output; ``None`` for no limit of its own.
        output_tokens: Length of the output that it states; ``None`` if it states none.
        priority: vLLM's priority.
        tenant: Tenant of the request, salted.
        adapter: LoRA adapter of the request, salted.
        task: The task that it is a call of, salted.
        task_due_s: When the task is due; ``None`` for no deadline.
        task_calls: Number of the task's calls as its client states it; ``None`` if it does not.
        task_last: Whether it is the last call of its task.
        prompt: Salted hashes of its prompt, :data:`HASH_BYTES` bytes for each whole stretch: two requests have the same
            hash at a place if their prompts are equal up to the end of that stretch.
        reached_s: When it reached the scheduler; ``None`` in recordings that do not say.
        first_from_s: Time from which on it comes first, as its targets were promised; ``None`` without a promise, and
            in recordings that do not say.
        held: The time before ``at_s`` for which a fleet's gateway had held it; the targets are what was left of them.
            ``None`` without a gateway.
    """

    number: int
    at_s: float
    class_id: int
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    tds: float | None
    prompt_tokens: int
    max_tokens: int | None
    output_tokens: int | None
    priority: int
    tenant: int
    adapter: int
    task: int
    task_due_s: float | None
    task_calls: int | None
    task_last: bool
    prompt: bytes
    reached_s: float | None = None
    first_from_s: float | None = None
    held: Held | None = None


class RequestAdmitted(_Event, tag=2):
    """A request that a step began to serve, for the first time or again after a preemption.

    Args:
        cached_tokens: Tokens of it with KV that was there already.
    """

    number: int
    at_s: float
    cached_tokens: int
    again: bool


class FirstToken(_Event, tag=3):
    """A request that has its first token."""

    number: int
    at_s: float


class RequestEnded(_Event, tag=4):
    """A request that left the engine.

    Args:
        completed: Whether its output is complete as far as the engine knows; otherwise it was aborted, also for a stop
            string.
        output_tokens: Tokens of its output.
        preemptions: How often it was preempted.
        contents: Salted hashes of prompt and output together, from the first stretch that the prompt does not fill.
        reason: One of :data:`ENDS`; empty in recordings of an earlier version.
        key: Salted name of the request where only the API process knows the reason, see :class:`StopStringFound`;
            otherwise 0.
    """

    number: int
    at_s: float
    completed: bool
    output_tokens: int
    preemptions: int
    contents: bytes
    reason: str = ""
    key: int = 0


class Preempted(_Event, tag=5):
    """A request that lost its KV.

    Args:
        planned: Whether the plan preempted it; otherwise vLLM did for lack of blocks.
        swapped: Whether the host keeps its KV.
    """

    number: int
    at_s: float
    planned: bool
    swapped: bool


class Paused(_Event, tag=6):
    """A request that the plan passes over, or serves again.

    Args:
        on: Whether the pause begins.
    """

    number: int
    at_s: float
    on: bool


class Stepped(_Event, tag=7):
    """A step of the engine; fields after ``end_s`` are its load, see :class:`~..latency.StepLoad`.

    Args:
        start_s: When it was scheduled.
        end_s: When its output was there.
        running: Requests that run after it was scheduled.
        waiting: Requests that wait then.
        free_blocks: Blocks of the KV cache that are free then.
        accepted_tokens: Draft tokens that were accepted in it.
        plan_s: Seconds that a plan made for it took; 0 where the last plan still held.
    """

    start_s: float
    end_s: float
    prefill_tokens: int
    num_prefills: int
    decode_seqs: int
    decode_context_tokens: int
    prefill_attention_tokens2: int
    draft_tokens: int
    running: int
    waiting: int
    free_blocks: int
    accepted_tokens: int
    plan_s: float = 0.0


class PoliciesChanged(_Event, tag=8):
    """Another policy, or another shadow policy, is at work."""

    at_s: float
    policy: str
    shadow_policy: str | None


class RefusedRequest(_Event, tag=9):
    """A request that the front end, or a fleet's gateway, refused; no engine was given it.

    Args:
        at_s: When it arrived at the server.
        reason: One of :data:`REFUSALS`.
        class_id: Number of its class; ``None`` if it was refused before its SLO was read, as are its targets then.
        prompt_tokens: Tokens of its prompt; ``None`` if they were not known yet.
        max_tokens: Most tokens of its output; ``None`` for no limit of its own, or if it was not read.
        output_tokens: Length of the output that it states; ``None`` if it states none, or it was not read.
        tenant: Tenant of the request, salted as the engines of the same server do.
        model: Name of the model that it asked for; empty where the process serves one.
    """

    at_s: float
    reason: str
    class_id: int | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    tds: float | None
    prompt_tokens: int | None
    max_tokens: int | None
    output_tokens: int | None
    tenant: int
    model: str = ""


class Lost(_Event, tag=10):
    """Events that should stand here were lost: the disk was too slow, or no segment has room for them.

    Args:
        at_s: When the loss was noted.
        events: Number of events since the last such note.
    """

    at_s: float
    events: int


class StopStringFound(_Event, tag=11):
    """The API process found a stop string of a request, and aborts it in the engine.

    Args:
        key: Salted name of the request, which its :class:`RequestEnded` has too.
    """

    at_s: float
    key: int


class RowsSeen(msgspec.Struct, array_like=True, gc=False):
    """Changes of the columns that a policy reads, since the last of these.

    Args:
        capacity: Length of a column.
        last_seq: ``seq`` of the latest request.
        is_whole: Whether all values are there; otherwise the changed ones.
        blocks: Columns by their type: number of the type, names of its columns, places, and values. Places are bytes of
            int32 that index the columns one after another; values are bytes of the type. Whole rows have no places, and
            changes no names; a type without a change is left out.
    """

    capacity: int
    last_seq: int
    is_whole: bool
    blocks: list[tuple[int, list[str], bytes, bytes]]


class PolicyBegan(_Event, tag=12):
    """A policy makes the plans that follow; recorded with ``record: plans``.

    Args:
        policy: Text of the policy.
        seed: Seed of the policy.
        learns: Whether it continues with what the policy before it learned.
        goes_on: Whether it is still at work: repeated where rows are recorded whole.
        groups: Groups of the KV cache, as :class:`~sloserve.core.kernels.kv_layout.KVGroups`.
        lookahead_tokens: Slots beyond the tokens of a step.
        layout_tokens: Context length in tokens beyond which no slots are taken.
    """

    at_s: float
    policy: str
    seed: int
    learns: bool
    goes_on: bool
    groups: list[list[int]]
    lookahead_tokens: int
    layout_tokens: int


class PolicyCalled(_Event, tag=13):
    """An event that was reported to the policy: ``arrived``, ``progressed`` or ``finished``.

    Args:
        slots: Slot of the request; for ``progressed`` bytes of int64, as are the tokens.
        results: Times and sizes of steps that the policy asked for, in order.
    """

    at_s: float
    name: str
    slots: bytes
    tokens: bytes
    rows: RowsSeen
    results: list[float | int]


class PlanMade(_Event, tag=14):
    """A snapshot that the policy was shown, and its plan before the guards.

    Args:
        at_s: The time that it was given.
        rows: Changes of the rows; waiting and running requests follow from their states.
        engine: Plain figures of the engine, by name.
        swap: Figures of the host pool, by name; ``None`` without one.
        drafts: Figures of drafts: three numbers and the bytes of two arrays of float64; ``None`` without drafts.
        aged: Bytes of the slots of aged requests, int64; their period, and the admissions before the next.
        standing: Bytes of levels, of what is beyond the shares, and of service; ``None`` without shares.
        blocks: Shared, awaited, and awaited blocks on the host.
        results: Times and sizes of steps that the policy asked for, in order.
        holdings: Blocks of the running requests that it asked for: number of own blocks, and number of holders of each
            shared block by id; ``None`` if it could not ask.
        plan: The plan: orders and slots as bytes of int64, then limits, with ``None`` as in the plan; ``None`` if the
            policy failed.
        seconds: Time that the plan took.
    """

    at_s: float
    rows: RowsSeen
    engine: dict[str, float | int | bool | None]
    swap: dict[str, float | int] | None
    drafts: tuple[float, float, float, bytes, bytes] | None
    aged: tuple[bytes, int, int]
    standing: tuple[bytes, bytes, bytes] | None
    blocks: tuple[int, float, float]
    results: list[float | int]
    holdings: list[tuple[int, dict[int, int]]] | None
    plan: tuple[bytes | None, bytes | None, bytes, bytes, int | None, int | None, int | None] | None
    seconds: float


def weight(event: "Event") -> int:
    """Return about how many bytes of memory the columns of an event take; 0 for one without columns."""
    if not isinstance(event, PolicyCalled | PlanMade):
        return 0
    return sum(len(places) + len(values) for _, _, places, values in event.rows.blocks)


Event = (
    SegmentHead
    | Arrived
    | RequestAdmitted
    | FirstToken
    | RequestEnded
    | Preempted
    | Paused
    | Stepped
    | PoliciesChanged
    | RefusedRequest
    | Lost
    | StopStringFound
    | PolicyBegan
    | PolicyCalled
    | PlanMade
)  # msgspec reads the union by the tags
