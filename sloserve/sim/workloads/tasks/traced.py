"""Conversations of a recorded trace as tasks: a request continues the prompt of an earlier one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.conversation_lengths import READ_TOKENS_PER_S
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.readers.found import DATA_FOLDER, find_trace
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.tasks.drawing import TaskDraws
from sloserve.sim.workloads.tasks.plan import OutputOf, Part, PlannedCall, TaskPlan, Text
from sloserve.sim.workloads.trace import Trace
from sloserve.sim.workloads.window import WHOLE, Window

MOONCAKE_FILES = ("mooncake_conversation_first_half", "conversation_trace")
"""Names of the trace without their endings, of which the second is Mooncake's own."""


@dataclass(slots=True)
class Conversation:
    """One conversation.

    Args:
        requests: Indices of its requests in the trace, in the order of their arrivals.
    """

    requests: list[int] = field(default_factory=list)


def conversations_of(trace: Trace) -> list[Conversation]:
    """Return the conversations of ``trace``, in the order of their first requests.

    A request continues a conversation if its prompt begins with all full blocks of the conversation's latest prompt, of
    which the last block was new in that conversation: blocks that all prompts share, as of a system prompt, say
    nothing. Of several such conversations it continues the one with the longest prompt.

    Raises: ConfigError for a trace without block ids.
    """
    if trace.prefix_ids is None:
        raise ConfigError(f"{trace.source}: the trace has no block ids, by which requests are grouped to conversations")
    found: list[Conversation] = []
    latest: dict[tuple[int, ...], Conversation] = {}  # by the full blocks of the latest prompt
    new_in: dict[int, Conversation] = {}
    for i, ids in enumerate(trace.prefix_ids):
        full = ids[: int(trace.prompt_tokens[i]) // trace.block_tokens]
        keys = (full[:k] for k in range(len(full), 0, -1))
        continued = next((k for k in keys if k in latest and new_in[k[-1]] is latest[k]), None)
        if continued is None:
            own = Conversation()
            found.append(own)
        else:
            own = latest.pop(continued)
        own.requests.append(i)
        for one in ids:
            new_in.setdefault(one, own)
        if full:
            latest[full] = own
    return found


def mooncake_tasks(n: int, seed: int, scale: float = 1.0, window: Window = WHOLE) -> list[TaskPlan]:
    """Return ``n`` successive conversations of Mooncake's trace from a place that ``seed`` chooses; all begin at 0 s.

    Lengths and shared prefixes are the trace's. Its times are arrivals in an open loop: a user is taken to read 20
    tokens a second, as in :mod:`~sloserve.sim.workloads.conversation_lengths`, and to send the next message when the
    rest of the time between the two arrivals has passed. A conversation has no deadline.

    Args:
        n: Number of conversations; fewer if the trace has no more.
        seed: Seed of the place.
        scale: Factor on all lengths in tokens.
        window: Part of the conversations from which they come.

    Raises: ConfigError where the trace is not found, or ``window`` has no conversation.
    """
    trace, conversations = read_mooncake()
    first, stop = (round(share * len(conversations)) for share in (window.start, window.end))
    if first >= stop:
        raise ConfigError(f"--window: none of the {len(conversations)} conversations lies within {window}")
    conversations = conversations[first:stop]
    n = min(n, len(conversations))
    start = int(stream(seed, "window").integers(0, len(conversations) - n + 1))
    return traced_plans(trace, conversations[start : start + n], scale)


def traced_plans(trace: Trace, conversations: Sequence[Conversation], scale: float) -> list[TaskPlan]:
    """Return the plans of ``conversations``, which begin at 0 s."""
    draws = TaskDraws("traced", 0, scale)
    assert trace.prefix_ids is not None
    texts: dict[int, Text] = {}
    plans = []
    for number, conversation in enumerate(conversations):
        calls: list[PlannedCall] = []
        prompt: tuple[Part, ...] = ()
        tokens = 0
        for i, request in enumerate(conversation.requests):
            length, output = int(trace.prompt_tokens[request]), int(trace.output_tokens[request])
            wait_s = 0.0
            after: tuple[int, ...] = ()
            if i:
                before = conversation.requests[i - 1]
                read_s = float(trace.output_tokens[before]) / READ_TOKENS_PER_S
                wait_s = max(0.0, float(trace.arrival_s[request] - trace.arrival_s[before]) - read_s)
                after = (i - 1,)
                tokens += int(trace.output_tokens[before])
                prompt += (OutputOf(i - 1), draws.text(max(length - tokens, 1)))
            else:
                for one in trace.prefix_ids[request][: length // trace.block_tokens]:
                    if one not in texts:
                        texts[one] = draws.text(trace.block_tokens)
                    prompt += (texts[one],)
                if rest := length % trace.block_tokens or not prompt:
                    prompt += (draws.text(rest),)
            tokens = max(length, tokens + 1)
            calls.append(PlannedCall(prompt, draws.output(output), after, wait_s))
        plans.append(TaskPlan(number, tuple(calls)))
    return plans


@cache
def read_mooncake() -> tuple[Trace, list[Conversation]]:
    """Return the trace and its conversations, which are read once. Raises: ConfigError where it is not found."""
    for name in MOONCAKE_FILES:
        try:
            path = find_trace(name)
        except ConfigError:
            continue
        trace = read_trace(path)
        return trace, conversations_of(trace)
    raise ConfigError(
        f"--tasks mooncake: Mooncake's trace of conversations is not found; put {MOONCAKE_FILES[0]}.csv.gz or "
        f"{MOONCAKE_FILES[1]}.jsonl into the folder that {DATA_FOLDER} names"
    )
