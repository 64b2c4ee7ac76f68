"""Estimate of how much idle KV of the prefix cache later requests will find again, learned from the engine's requests.

The next call of an agent or the next turn of a conversation begins with the prompt of the previous one. While a tool
runs or a user types, no request holds that KV, and every admission that needs free blocks may displace it. Whether this
matters depends on the traffic: KV of unrelated requests is never asked for again.

Prompts of requests that ended are remembered by the content of their last whole stretch of tokens. A request that
arrives with that content in its prompt continues the earlier one. The time between the two, and how long other prompts
have waited without being continued, give the chance that a prompt of some age will still be continued: the hazard of
each range of ages, as in the estimator of Kaplan and Meier, where prompts that still wait count as censored. The sum of
chance x blocks is what plans leave free.

A cache drops what was used longest ago. Prompts that are older than the cache could keep, and continuations that come
only at such ages, therefore do not count: to leave room for them would lose the room and find nothing.

The end of a prompt is rounded down to whole stretches, because templates end a prompt in words that the next prompt
lacks, and because a look at each block of a prompt would take long. Outputs do not count, because templates leave out
what a model thought.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows, State
from sloserve.engine.port import EnginePort, EngineRequest

STRETCH_TOKENS: Final = 512
"""Tokens of a stretch, as far as whole blocks allow. Shorter prompts are not remembered: they are computed fast."""
MOST_AWAITED: Final = 0.5
"""Largest share of the KV cache that is left to requests yet to come; the others need room to run."""
MOST_PROMPTS: Final = 1024
"""Prompts that are remembered; the oldest are forgotten first."""
LOOK_BACK: Final = 512
"""Last stretches of an arriving prompt in which the end of an earlier prompt is looked for."""
EVIDENCE: Final = 1024
"""Continued prompts after which each one counts half, so that estimates follow the traffic."""
AGES_S: Final[FloatArray] = np.append(0.0, 0.25 * 2.0 ** np.arange(12))
"""Ages at which a range of ages begins, in seconds; the last range has no end."""


class PrefixReuse:
    """Prompts of requests that ended, and the chance that other requests will continue them.

    All times are of one clock, in seconds, and must not decrease.
    """

    NEEDS: Final = frozenset({"task_last"})
    """The column by which prompts are left out that no request continues."""

    def __init__(self) -> None:
        # Prompts in order of their end, in an array twice as long as needed, so that few appends move the others.
        self._ended_s: FloatArray = np.zeros(2 * MOST_PROMPTS)
        self._blocks: IntArray = np.zeros(2 * MOST_PROMPTS, np.int64)  # 0 of a prompt that is not waited for
        self._waits = np.zeros(2 * MOST_PROMPTS, np.bool_)
        self._on_host = np.zeros(2 * MOST_PROMPTS, np.bool_)
        self._size = 0
        self._place_of: dict[Hashable, int] = {}  # by the content of the last stretch
        self._key_at: list[Hashable] = []
        self._continued: FloatArray = np.zeros(AGES_S.size)
        self._at_risk: FloatArray = np.zeros(AGES_S.size)
        """Prompts that reached each range of ages and wait no more."""

    def arrived(self, keys: Sequence[Hashable], now_s: float) -> None:
        """Note a request that arrived.

        Args:
            keys: Contents of the whole stretches of its prompt, in order, see
                :meth:`sloserve.engine.port.EnginePort.prompt_contents`.
            now_s: Time of the arrival.
        """
        place_of = self._place_of
        if not place_of:
            return
        for key in reversed(keys[-LOOK_BACK:]):
            place = place_of.pop(key, None)
            if place is not None:
                age = int(AGES_S.searchsorted(now_s - self._ended_s[place], side="right")) - 1
                self._at_risk[: age + 1] += 1.0
                self._continued[max(age, 0)] += 1.0
                self._waits[place], self._blocks[place] = False, 0
                if self._continued.sum() > EVIDENCE:
                    self._continued *= 0.5
                    self._at_risk *= 0.5
                return

    def request_ends(self, request: EngineRequest, rows: Rows, slot: int, port: EnginePort, now_s: float) -> None:
        """Note the KV of a request that ends, which may be found again, before the engine takes its blocks.

        Args:
            request: The request.
            rows: Rows of the requests.
            slot: Slot of the request.
            port: The engine.
            now_s: The present time.
        """
        if rows.state[slot] != State.RUNNING or rows.task_last[slot]:
            return
        keys = port.prompt_contents(request, STRETCH_TOKENS)
        if not keys:
            return
        own, shared = port.holding(request)
        prompt_tokens = int(rows.prompt_tokens[slot])
        prompt_share = prompt_tokens / max(prompt_tokens + request.num_output_tokens, 1)
        of_prompt = math.ceil((own + len(shared)) * prompt_share) - len(shared)  # what is shared is at the beginning
        on_host = port.swapped_tokens(request) >= prompt_tokens - STRETCH_TOKENS
        self.ended(keys, min(max(of_prompt, 0), own), now_s, on_host=on_host)

    def ended(self, keys: Sequence[Hashable], blocks: int, now_s: float, *, on_host: bool = False) -> None:
        """Note a request that ended.

        Args:
            keys: Contents of the whole stretches of its prompt, as in :meth:`arrived`.
            blocks: KV blocks of its prompt that no other request holds.
            now_s: Time of its end.
            on_host: Whether swap space keeps this KV as well.
        """
        if not keys:
            return
        if self._size == self._ended_s.size:
            self._forget_oldest(now_s)
        key, place = keys[-1], self._size
        before = self._place_of.get(key)
        if before is not None:  # the same content again: it is in the cache once
            self._waits[before], self._blocks[before] = False, 0
        self._ended_s[place], self._blocks[place], self._waits[place] = now_s, blocks, True
        self._on_host[place] = on_host
        self._place_of[key] = place
        self._key_at.append(key)
        self._size += 1

    def awaited_blocks(self, now_s: float, total_blocks: int, *, on_host: bool = False) -> float:
        """Return the expected number of idle KV blocks that later requests will find again.

        Args:
            now_s: The present time.
            total_blocks: Blocks of the cache, of which ``MOST_AWAITED`` may be left for the youngest prompts.
            on_host: Whether only blocks count that swap space keeps as well.
        """
        if not self._continued.any() or (on_host and not self._on_host[: self._size].any()):
            return 0.0
        waiting, blocks, blocks_on_host = self._by_age(now_s)
        hazard = self._continued / np.maximum(self._at_risk + _from_each_on(waiting), 1.0)
        is_kept = blocks.cumsum() <= MOST_AWAITED * total_blocks
        hazard[~is_kept] = 0.0
        later = 1.0 - np.cumprod(np.maximum(1.0 - hazard, 0.0)[::-1])[::-1]
        return float(later @ np.where(is_kept, blocks_on_host if on_host else blocks, 0.0))

    def _by_age(self, now_s: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return how many prompts of each range of ages are waited for, their blocks, and their blocks on the host."""
        ended_s = self._ended_s[: self._size]
        first = ended_s.searchsorted(now_s - AGES_S[1:], side="right")  # the first prompt that is younger than each age
        ends = np.append(self._size, first)
        columns = self._waits, self._blocks, self._blocks * self._on_host
        sums = (np.append(0, column[: self._size].cumsum())[ends] for column in columns)
        waiting, blocks, on_host = (-np.diff(np.append(each, 0)).astype(float) for each in sums)
        return waiting, blocks, on_host

    def _forget_oldest(self, now_s: float) -> None:
        """Forget the older half of the prompts; each counts as not continued for as long as it was remembered."""
        half = MOST_PROMPTS
        ages = AGES_S.searchsorted(now_s - self._ended_s[:half][self._waits[:half]], side="right") - 1
        self._at_risk += _from_each_on(np.bincount(np.maximum(ages, 0), minlength=AGES_S.size).astype(float))
        for column in (self._ended_s, self._blocks, self._waits, self._on_host):
            column[:half] = column[half:]
        self._key_at = self._key_at[half:]
        self._size = half
        self._place_of = {key: place for place, key in enumerate(self._key_at) if self._waits[place]}


def _from_each_on(counts: FloatArray) -> FloatArray:
    """Return the sum of each entry and all after it."""
    total: FloatArray = counts[::-1].cumsum()[::-1]
    return total
