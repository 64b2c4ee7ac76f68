"""Chats as tasks: a user reads each output, thinks, and sends the next message with the whole conversation."""

from sloserve.sim.workloads.conversation_lengths import READ_TOKENS_PER_S, THINK_S
from sloserve.sim.workloads.length_models import sharegpt
from sloserve.sim.workloads.tasks.drawing import TaskDraws
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.react import chain

ROUNDS = 5.0
MOST_TOKENS = 16_384


def chat_tasks(n: int, seed: int, scale: float = 1.0) -> list[TaskPlan]:
    """Return ``n`` chats of ``seed``, all of which begin at 0 s; a chat has no deadline.

    Messages and outputs have ShareGPT's lengths (:func:`~sloserve.sim.workloads.length_models.sharegpt`). A user reads
    20 tokens a second and then thinks for 10 s on average, as in
    :mod:`~sloserve.sim.workloads.conversation_lengths`, so that some tens of seconds lie between two calls. The number
    of rounds is geometric with a mean of 5, our choice; a chat ends before it exceeds 16,384 tokens.

    Args:
        n: Number of chats.
        seed: Seed of the draw.
        scale: Factor on all lengths in tokens; times do not change.
    """
    draws = TaskDraws("chat-tasks", seed, scale)
    system = draws.text(256, shared=True)
    lengths = sharegpt()
    plans = []
    for number in range(n):
        rounds = int(draws.rng.geometric(1.0 / ROUNDS))
        messages, replies = (found.tolist() for found in lengths.draw(rounds, draws.rng))
        thinks_s = draws.rng.exponential(THINK_S, rounds).tolist()
        waits_s = [reply / READ_TOKENS_PER_S + think_s for reply, think_s in zip(replies, thinks_s, strict=True)]
        prompt = (system, draws.text(messages[0]))
        found = chain(draws, prompt, replies, messages[1:], waits_s, most_tokens=MOST_TOKENS)
        plans.append(TaskPlan(number, found))
    return plans
