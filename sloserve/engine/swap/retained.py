"""KV of ended requests that the host keeps for the requests which continue them: calls of a task, turns of a chat.

The next call of an agent begins with the prompt of the previous one. While its tool runs, the KV of that prompt is idle
on the device, and the prefix cache drops it as soon as others need the blocks. The call then computes its whole prompt
again. Here such KV is copied to the swap space when its request ends, and loaded for the request that continues it, as
far as the device does not have it by then. The copy goes on beside the steps (:mod:`sloserve.engine.swap.beside`).

Ended prompts are known by the content of their last whole stretch of tokens. A request looks for such contents in its
own prompt, from the end; it continues the request that it finds first, and takes over its KV up to the last block in
which the two agree. KV is copied where that saves engine time: the chance that the prompt is continued, times the
chance that the device has lost it by then, times the time to compute it, against the time that the copy takes of the
engine. Both chances are learned from all ended prompts, copied or not, and separately for calls of tasks. The KV of a
call is not kept if its client says that it is the last of its task.

The pool prefers preempted requests, which surely come back. Of retained KV it gives up the one that ended first.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from sloserve.core.tasks import TaskCall
from sloserve.engine.swap.store import SwapStore
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.plan import EngineFacts
from sloserve.lso.swapping import recompute_s, retention_cost_s

STRETCH_TOKENS: Final = 64
"""Tokens of a stretch, as far as whole blocks allow. A template may end a prompt in a few words that the next prompt
lacks, so that its very last block says too much; and a system prompt that many share must not be its last stretch."""
LOOK_BACK: Final = 4096
"""Last stretches of an arriving prompt in which the end of an earlier prompt is looked for."""
LEAST_TOKENS: Final = 512
"""Tokens of the shortest prompt that is kept: shorter ones are computed fast."""
MOST_ENDED: Final = 1024
"""Ended prompts that are remembered; the oldest are forgotten first."""
MOST_BLOCKS: Final = 2**20
"""Blocks of ended prompts that are remembered; their contents take about 80 MB of memory."""
CONTINUED_WINDOW: Final = 256
"""Ended prompts that count for the chance that a prompt is continued. One that is not continued before as many others
have ended counts as a prompt that is not; the host may keep it for longer. An undecided prompt counts
by the share of these endings that it has seen: where none is continued, the chance falls from the first endings on."""
LOST_WINDOW: Final = 16
"""Continued prompts that count for the chance that the device has lost a prompt. They are few, so that KV is kept as
soon as the device begins to lose some; a copy costs little beside a prompt that has to be computed again."""
_LEAST_WORTH_S: Final = 1e-18
"""Worth of a token of the first retained KV; a later one is worth more, and all far less than a recomputation."""
_AWAITED_WORTH_S: Final = 1e-8
"""Worth of a token of KV for which a request waits: more than of KV that may never be asked for, and less than a
recomputation, which takes some 1e-6 s for a token of a small model."""


@dataclass(slots=True)
class _Chance:
    """The chance that something happens, by the share of about the last ``window`` cases in which it did."""

    window: int
    happened: float = 0.0
    cases: float = 0.0

    def add(self, happened: float) -> None:
        """Count one more case, of which the part ``happened`` counts."""
        kept = min((self.window - 1.0) / max(self.cases, 1.0), 1.0)
        self.happened, self.cases = kept * self.happened + happened, kept * self.cases + 1.0

    @property
    def value(self) -> float:
        return _chance(self.happened, self.cases)


def _chance(happened: float, cases: float) -> float:
    """Return a chance by Laplace's rule of succession: a half before the first case, and never 0 or 1."""
    return (happened + 1.0) / (cases + 2.0)


@dataclass(slots=True)
class _Ended:
    """A prompt of a request that ended.

    Args:
        kept_as: Id under which the store may keep its KV.
        contents: Contents of its full blocks, prompt and output, in order; empty once they are not needed any more.
        is_call: Whether it was a call of a task.
        continued: The part of its blocks with which the request began that continued it; 0 if none did.
    """

    kept_as: str
    contents: Sequence[Hashable]
    is_call: bool
    continued: float = 0.0


@dataclass(frozen=True, slots=True)
class Ending:
    """A request that ends, as far as its KV may serve others.

    Args:
        contents: Contents of its full blocks, prompt and output, in order: two requests have an equal entry at a place
            if all their tokens up to the end of that block are equal. Empty without a prefix cache.
        block_tokens: Tokens of each of these blocks.
        prompt_tokens: Tokens of its prompt.
        call: The task that it was a call of; ``None`` if it was no part of a task.
    """

    contents: Sequence[Hashable]
    block_tokens: int
    prompt_tokens: int
    call: TaskCall | None = None

    @property
    def key(self) -> Hashable | None:
        """Content of the last whole stretch of the prompt; ``None`` for a prompt that is too short to be kept."""
        stretch = _stretch(self.block_tokens)
        whole = self.prompt_tokens // self.block_tokens // stretch * stretch
        is_long = self.prompt_tokens >= max(LEAST_TOKENS, self.block_tokens) and whole <= len(self.contents)
        return self.contents[whole - 1] if is_long else None

    @property
    def tokens(self) -> int:
        """Tokens in its full blocks."""
        return len(self.contents) * self.block_tokens


class RetainedKV:
    """Ended requests with KV that later requests may find on the host.

    Args:
        store: The store of the swap space.
    """

    def __init__(self, store: SwapStore) -> None:
        self._store = store
        self._ended: OrderedDict[Hashable, _Ended] = OrderedDict()
        # Prompts of calls of tasks are counted apart.
        self._continued = {is_call: _Chance(CONTINUED_WINDOW) for is_call in (False, True)}
        self._lost = _Chance(LOST_WINDOW)
        self._number = self._blocks = 0
        self._undecided: deque[_Ended] = deque()  # the last CONTINUED_WINDOW

    def is_worth_keeping(self, ending: Ending, kept_tokens: int, running: StepLoad, engine: EngineFacts) -> bool:
        """Return whether it saves engine time to copy what is not kept yet of the KV of a request that ends.

        Args:
            ending: The request.
            kept_tokens: The number of its first tokens with KV on the host.
            running: Decodes that run.
            engine: What the engine can do.
        """
        if engine.swap is None or ending.key is None or (ending.call is not None and ending.call.last):
            return False
        if not self._store.needed.keeps_all:
            return False  # what a window or a state has lost could serve no prompt that differs at its end
        chance = self._chance_continued(is_call=ending.call is not None) * self._lost.value
        new_tokens = ending.tokens - min(kept_tokens, ending.tokens)
        cost_s = retention_cost_s(new_tokens, running, engine)
        return chance * recompute_s(ending.tokens, running, engine) > cost_s

    def _chance_continued(self, *, is_call: bool) -> float:
        """Return the chance that a prompt of this kind is continued, with what is known of undecided ones."""
        decided, ended = self._continued[is_call], len(self._undecided)
        happened, cases = decided.happened, decided.cases
        for others, one in zip(range(ended - 1, -1, -1), self._undecided, strict=True):
            if one.is_call is is_call:
                happened += one.continued
                cases += 1.0 if one.continued else others / CONTINUED_WINDOW
        return _chance(happened, cases)

    def worth_s(self, tokens: int) -> float:
        """Return the worth at which KV of ``tokens`` is retained now: more a block than any that ended before."""
        return _LEAST_WORTH_S * (1 + self._number) * tokens

    def ended(self, request_id: str, ending: Ending) -> None:
        """Note a request that ended, and keep what the store has of its KV for the one that continues it."""
        key = ending.key
        if key is None or not self._store.needed.keeps_all:
            return
        if key in self._ended:  # the same prompt again, which continues none
            self._forget(key, "retained_again")
        if ending.call is not None and ending.call.last:
            return
        self._number += 1
        new = _Ended(f"retained {self._number}", ending.contents, ending.call is not None)
        self._store.hand_over(request_id, new.kept_as)
        self._store.let_last(new.kept_as, self.worth_s(self._store.tokens_of(new.kept_as)))
        self._ended[key] = new
        self._blocks += len(new.contents)
        while len(self._ended) > MOST_ENDED or (self._blocks > MOST_BLOCKS and len(self._ended) > 1):
            self._forget(next(iter(self._ended)), "not_continued")
        self._undecided.append(new)
        if len(self._undecided) > CONTINUED_WINDOW:
            decided = self._undecided.popleft()
            self._continued[decided.is_call].add(decided.continued)

    def arrived(self, request_id: str, contents: Sequence[Hashable], block_tokens: int, hit_tokens: int) -> int:
        """Give a request that arrives what is kept of the ended request that it continues.

        Args:
            request_id: Id of the request.
            contents: Contents of the full blocks of its prompt, in order.
            block_tokens: Tokens of each of these blocks.
            hit_tokens: Tokens of it that the prefix cache has.

        Returns: the tokens of its prompt that are kept for it now.
        """
        stretch = _stretch(block_tokens)
        whole = len(contents) // stretch * stretch
        for place in range(whole, max(whole - LOOK_BACK * stretch, 0), -stretch):
            if contents[place - 1] in self._ended:
                found, ended = self._take(contents[place - 1])
                same = _equal_blocks(contents, ended)
                tokens = same * block_tokens
                found.continued = same / len(ended)
                self._lost.add(1.0 - min(hit_tokens / tokens, 1.0) if tokens else 0.0)
                return self._take_over(request_id, found, tokens)
        return 0

    def claim(self, request_id: str, ending: Ending) -> None:
        """Give a request that ends what is kept of an ended one with the same prompt, so that it is not copied again.

        Samples of one prompt, the branches of a beam search, and a request that is sent again have the same prompt.
        Nothing happens if the request has KV on the host already.
        """
        if ending.key in self._ended and not self._store.tokens_of(request_id):
            found, contents = self._take(ending.key)
            self._take_over(request_id, found, _equal_blocks(ending.contents, contents) * ending.block_tokens)

    def _take(self, key: Hashable) -> tuple[_Ended, Sequence[Hashable]]:
        """Remove an ended prompt from the known ones; return it, and the contents of its blocks."""
        found = self._ended.pop(key)
        contents, found.contents = found.contents, ()
        self._blocks -= len(contents)
        return found, contents

    def _forget(self, key: Hashable, reason: str) -> None:
        """Forget an ended prompt, and give up its KV."""
        self._store.drop(self._take(key)[0].kept_as, reason)

    def _take_over(self, request_id: str, found: _Ended, tokens: int) -> int:
        """Keep the first ``tokens`` tokens of an ended request for another; return how many are kept."""
        self._store.trim(found.kept_as, tokens)
        if not tokens or not self._store.tokens_of(found.kept_as):
            self._store.drop(found.kept_as, "differs")
            return 0
        self._store.hand_over(found.kept_as, request_id)
        kept = self._store.tokens_of(request_id)
        self._store.let_last(request_id, self.worth_s(kept), awaited_worth_s=_AWAITED_WORTH_S * kept)
        return kept


def _equal_blocks(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return with how many equal blocks two requests begin.

    Contents name all tokens before them, so that two requests agree up to a place and nowhere behind it.
    """
    most = min(len(one), len(other))
    return bisect_right(range(most), False, key=lambda i: one[i] != other[i])


def _stretch(block_tokens: int) -> int:
    return max(STRETCH_TOKENS // block_tokens, 1)
