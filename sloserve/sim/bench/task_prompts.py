"""Prompts of a task's calls with the model's real outputs in them: as token ids, as text, or as the messages of a chat.

A prompt that continues a conversation begins with exactly what the call before sent and got, so that a prefix cache
finds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sloserve.client.payload import Message, Prompt
from sloserve.client.prompts import Prompts
from sloserve.sim.workloads.tasks.plan import TaskPlan, Text


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a call: its text, and the ids of its tokens where the server states them."""

    text: str
    ids: list[int] | None


@dataclass(frozen=True, slots=True)
class TaskPrompts:
    """The prompts of the tasks of one run.

    Args:
        prompts: Makes the texts that no call generates.
        seed: Seed of the run; runs of other seeds have other texts.
        is_chat: Whether prompts are the messages of a chat.
    """

    prompts: Prompts
    seed: int
    is_chat: bool

    def make(self, plan: TaskPlan, i: int, outputs: Mapping[int, Output]) -> Prompt:
        """Return the prompt of call ``i``, given the ``outputs`` of all calls that it follows, by their index."""
        tokens: list[int] = []
        messages: list[Message] = []
        for at, part in enumerate(plan.calls[i].prompt):
            if isinstance(part, Text):
                own = self.prompts.part(part.ids, plan.block_tokens, self.seed)
                found, role = (Output(own, None) if isinstance(own, str) else Output("", own)), "user"
            else:
                found, role = outputs[part.call], "assistant" if plan.continues(i, at) else "user"
            tokens += found.ids or ()
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += found.text
            else:
                messages.append({"role": role, "content": found.text})
        if self.is_chat:
            return messages
        return tokens or "".join(message["content"] for message in messages)
