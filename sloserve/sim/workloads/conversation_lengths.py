"""Conversations: each prompt carries the earlier rounds, so it shares a prefix with the one before.

The papers leave some things open, which this module chooses: rounds are geometric; a person reads an output at 20
tokens a second and thinks for 10 s on average; a conversation ends before its prompt exceeds 3,000 tokens, which every
shipped profile serves.
"""

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.request import PREFIX_BLOCK_TOKENS
from sloserve.sim.workloads.arrival_processes import ArrivalProcess
from sloserve.sim.workloads.length_models import TokenLengths
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.trace import Trace, make_trace

READ_TOKENS_PER_S = 20.0
THINK_S = 10.0
_MOST_TOKENS = 3000
_IDS = 1 + _MOST_TOKENS // PREFIX_BLOCK_TOKENS


def conversations(
    name: str, arrivals: ArrivalProcess, lengths: TokenLengths, n: int, seed: int, rps: float, rounds: float
) -> tuple[Trace, IntArray]:
    """Return ``n`` requests at ``rps``, and the conversation of each request, ``[requests]``, numbered from 0.

    Conversations have ``rounds`` rounds on average, which is above 1. Some conversations are under way at the start, so
    that the rate is even.
    """
    count = 2 * n
    rng = stream(seed, f"{name}/rounds")
    rows: list[tuple[float, int, int, int]] = []  # start in its conversation (s), conversation, tokens
    for conversation in range(count):
        num_rounds = int(rng.geometric(1.0 / rounds))
        asked, replies = lengths.draw(num_rounds, rng)
        thinks_s = rng.exponential(THINK_S, num_rounds)
        since_s, prompt = 0.0, 0
        for new, reply, think_s in zip(asked.tolist(), replies.tolist(), thinks_s.tolist(), strict=True):
            prompt += min(new, _MOST_TOKENS)
            if prompt > _MOST_TOKENS:
                break
            rows.append((since_s, conversation, prompt, reply))
            since_s, prompt = since_s + reply / READ_TOKENS_PER_S + think_s, prompt + reply
    per_conversation = len(rows) / count
    starts_s = arrivals.draw(count, stream(seed, f"{name}/arrivals")) * per_conversation / rps
    # Requests of the first half before the second half begins are left out: the rate is even after that.
    rows = sorted((float(starts_s[row[1]]) + row[0], *row[1:]) for row in rows)
    rows = [row for row in rows if row[0] >= starts_s[n]][:n]
    at_s, of, prompts, outputs = zip(*rows, strict=True)
    ids = [tuple(range(_IDS * c, _IDS * c + -(-p // PREFIX_BLOCK_TOKENS))) for c, p in zip(of, prompts, strict=True)]
    trace = make_trace(name, f"generator {name}", at_s, prompts, outputs, [""] * n, ids)
    return trace, np.unique(of, return_inverse=True)[1]
