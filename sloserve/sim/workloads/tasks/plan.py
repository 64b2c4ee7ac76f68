"""A task as a plan: its calls, what their prompts consist of, and which calls must have ended before each of them.

Prompts are named by content, not only by length: a prompt is a sequence of texts and of outputs of earlier calls. From
it follow both the block ids of a simulated prompt, by which a prefix cache finds what repeats, and the real prompt of a
live run, which has the model's real outputs in it. All lengths are whole blocks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from sloserve.core.request import OUTPUT_ID

BLOCK = 16
"""Tokens of a block, unless the plan says otherwise."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that no call generates: a system prompt, a user's message, the result of a tool.

    Args:
        ids: Ids of its blocks, at least 0. Equal ids are equal text.
        shared: Whether other tasks have the same text at the same place, as with a system prompt.
    """

    ids: tuple[int, ...]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class OutputOf:
    """The output of an earlier call of the same task, which has the index ``call``."""

    call: int


Part = Text | OutputOf
"""A part of a prompt."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of a task.

    Args:
        prompt: Parts of the prompt, in order.
        output_ids: Ids of the output's blocks. They name the output in prompts that have it at another place than
            directly behind the prompt that it responded to.
        after: Indices of the calls that must have completed before this one is sent; none for a call that is sent when
            the task arrives.
        wait_s: Seconds from the end of the last of these calls (from the task's arrival without any) until this call is
            sent: a tool runs, or a user reads and types.
        kind: Name of the kind of call, by which an assignment of SLOs may choose a class.
    """

    prompt: tuple[Part, ...]
    output_ids: tuple[int, ...]
    after: tuple[int, ...] = ()
    wait_s: float = 0.0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """A task.

    Args:
        number: Number of the task; no two tasks of a run have the same.
        calls: The calls. A call follows only calls before it, and the last one ends the task.
        arrival_s: Time in seconds from the start of the run at which the task begins.
        due_s: Time in seconds from the start of the run by which the task should have ended; infinite for a task
            without a deadline.
        kind: Name of the kind of task, by which reports group tasks.
        block_tokens: Tokens of one block.

    Raises: ValueError for a call that follows a later call, or that has an output in its prompt which need not exist
    when the call is sent.
    """

    number: int
    calls: tuple[PlannedCall, ...]
    arrival_s: float = 0.0
    due_s: float = math.inf
    kind: str = ""
    block_tokens: int = BLOCK

    def __post_init__(self) -> None:
        earlier: list[frozenset[int]] = []
        for i, call in enumerate(self.calls):
            if any(not 0 <= j < i for j in call.after):
                raise ValueError(
                    f"task {self.number}: call {i} follows the calls {call.after}, of which one is not earlier"
                )
            earlier.append(frozenset(call.after).union(*(earlier[j] for j in call.after)))
            quoted = {part.call for part in call.prompt if isinstance(part, OutputOf)}
            if missing := quoted - earlier[i]:
                raise ValueError(
                    f"task {self.number}: call {i} has outputs of the calls {missing}, which it does not follow"
                )

    @property
    def key(self) -> str:
        """The name of the task in a run."""
        return f"task{self.number}"

    def request_id(self, i: int) -> str:
        """Return the id of the request that call ``i`` sends."""
        return f"{self.key}.{i}"

    def prompt_tokens(self, i: int) -> int:
        """Return the tokens of call ``i``'s prompt."""
        return self.block_tokens * sum(self._blocks(part) for part in self.calls[i].prompt)

    def output_tokens(self, i: int) -> int:
        """Return the tokens of call ``i``'s output."""
        return self.block_tokens * len(self.calls[i].output_ids)

    def prefix_ids(self, i: int) -> tuple[int, ...]:
        """Return the ids of the blocks of call ``i``'s prompt.

        An output has the id of generated tokens only where it continues its conversation. At any other place its KV is
        not in a prefix cache, as its position and all before it differ.
        """
        ids: list[int] = []
        for at, part in enumerate(self.calls[i].prompt):
            if isinstance(part, Text):
                ids += part.ids
            elif self.continues(i, at):
                ids += [OUTPUT_ID] * len(self.calls[part.call].output_ids)
            else:
                ids += self.calls[part.call].output_ids
        return tuple(ids)

    def continues(self, i: int, at: int) -> bool:
        """Return whether part ``at`` of call ``i``'s prompt is an output directly behind the prompt that it answers."""
        part = self.calls[i].prompt[at]
        return isinstance(part, OutputOf) and self.calls[i].prompt[:at] == self.calls[part.call].prompt

    def repeated_tokens(self, i: int) -> int:
        """Return the tokens of call ``i``'s prompt that a prefix cache which forgets nothing has.

        The newest token of an output has no KV, so that the block that it ends is computed by the next call.
        """
        shared = 0
        for part in self.calls[i].prompt:
            if not (isinstance(part, Text) and part.shared):
                break
            shared += len(part.ids)
        return self.block_tokens * max([shared, *(self._common_blocks(i, j) for j in range(i))])

    def _common_blocks(self, i: int, j: int) -> int:
        """Return the number of leading blocks of call ``i``'s prompt that are cached once call ``j`` has ended."""
        blocks = 0
        for ours, theirs in zip(self.calls[i].prompt, (*self.calls[j].prompt, OutputOf(j)), strict=False):
            if ours == theirs:
                blocks += self._blocks(ours) - (ours == OutputOf(j))
                continue
            if isinstance(ours, Text) and isinstance(theirs, Text):
                pairs = zip(ours.ids, theirs.ids, strict=False)
                blocks += next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(ours.ids), len(theirs.ids)))
            break
        return blocks

    def _blocks(self, part: Part) -> int:
        return len(part.ids if isinstance(part, Text) else self.calls[part.call].output_ids)


class BlockIds:
    """Hands out ids of blocks for the plans of one workload; none twice."""

    def __init__(self) -> None:
        self._fresh: Iterator[int] = count()

    def take(self, blocks: int) -> tuple[int, ...]:
        """Return the ids of ``blocks`` blocks of new text."""
        return tuple(islice(self._fresh, blocks))
