"""How fast the engine is now, by its step times as they are known: what a token, a prompt and a step take."""

import math
from dataclasses import dataclass
from typing import Final

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.plan import EngineFacts
from sloserve.lso.prompts_beside_decodes import LEAST_SHARE

_MORE_SEQS: Final = 16
"""Decodes by which a step is made larger to see what one more takes."""


@dataclass(frozen=True, slots=True)
class EnginePace:
    """Speed of the engine now, in seconds.

    Args:
        step_s: Seconds of a step of decodes alone.
        full_s: Seconds of a full step.
        prompt_token_s: Seconds of a prompt token, at the rate of full steps.
        token_s: Seconds that one more decode adds to a step.
        step_wait_s: Seconds until the next token of a prompt, beside the time of its own tokens.
    """

    step_s: float
    full_s: float
    prompt_token_s: float
    token_s: float
    step_wait_s: float


def pace_of(engine: EngineFacts, decodes: int, context_tokens: int) -> EnginePace:
    """Return the speed of the engine with these running requests.

    Prompts that wait do not count in ``step_s``: the step budget keeps steps as short as the running requests need, and
    what a prompt takes of the time of others is in its price. Counted in both, every request looks slower than it will
    be, and long outputs of known length are given up too early.

    Decodes and their drafts may fill the whole step. They end, and prompts take their tokens: so a full step counts as
    having room for ``LEAST_SHARE`` of its tokens. With the room of this very step, a prompt token would take a step,
    and no request that waits could be in time.

    A prompt begins when the steps in flight end, and it has its token when the step ends that computes its last part.
    Other requests take the rest of that step. In a queue, a prompt begins and ends at any place within a step, so it
    waits for one step in the mean, beside the time of its own tokens. That step counts as long as the step in flight,
    because the step budget chose the length of both.

    Args:
        engine: What the engine can do.
        decodes: Number of running requests.
        context_tokens: Tokens in their KV.
    """
    latency = engine.step_latency
    mean = context_tokens // max(decodes, 1)
    alone = StepLoad(decode_seqs=max(decodes, 1), decode_context_tokens=context_tokens)
    more = StepLoad(
        decode_seqs=alone.decode_seqs + _MORE_SEQS, decode_context_tokens=context_tokens + _MORE_SEQS * mean
    )
    least = math.ceil(LEAST_SHARE * engine.token_budget)
    room = max(engine.token_budget - decodes * engine.decode_tokens, least)
    full = StepLoad(room, 1, decodes, context_tokens, room * room)
    alone_s, more_s, full_s = latency.step_s(alone), latency.step_s(more), latency.step_s(full)
    full_s = max(full_s, alone_s)
    step_wait_s = engine.busy_s + min(max(engine.busy_s, alone_s), full_s)
    return EnginePace(alone_s, full_s, full_s / room, max((more_s - alone_s) / _MORE_SEQS, 1e-9), step_wait_s)
