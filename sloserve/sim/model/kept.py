"""What layers of one kind keep of a request's blocks, and which blocks of a prefix they need to find.

The rules are the rules of vLLM's managers, one for each kind of layer (v1/core/single_type_kv_cache_manager.py).
:mod:`sloserve.core.kernels.kv_layout` has the block counts that follow from tokens alone; there Mamba's states are an
upper bound, here they are exact.
"""

from collections.abc import Callable, Iterable
from typing import Any

from sloserve.core.kernels.kv_layout import MOST_TOKENS, STATE_WINDOW, KVGroups, KVLayout
from sloserve.lso.blocks import blocks_of
from sloserve.sim.model.block_pool import NULL

Found = list[tuple[int, ...] | None]
"""The block of each group of a kind by place; ``None`` where a prefix is found without a block."""


class Table(list[int]):
    """The blocks of a request in one group by place: NULL where a block was given back, or was never kept.

    Args:
        grown: Whether the request was given blocks beside the blocks that it found.
        state: Place of the Mamba state before the last growth; -1 for none.
        given_back: Number of leading places that were given back.
    """

    __slots__ = ("given_back", "grown", "state")

    def __init__(self, blocks: Iterable[int] = ()) -> None:
        super().__init__(blocks)
        self.grown, self.state, self.given_back = False, -1, 0


class Whole:
    """The rule for full attention: it keeps all blocks, from the first to the last.

    ``skipped`` takes the number of settled tokens, and may be below 0 where no block can be skipped.

    Args:
        groups: What the layers keep.
        lookahead: Slots beyond the tokens of a step, for drafts.
        max_tokens: Context length in tokens beyond which no slots are taken.
    """

    keeps_states = False
    """Whether vLLM counts the kind as Mamba: a state cached in a step is first found in the next one."""

    def __init__(self, groups: KVGroups, lookahead: int = 0, max_tokens: int = MOST_TOKENS) -> None:
        self.num_groups, self.block_size, self.spare = groups.num_groups, groups.block_size, groups.spare_blocks
        self._most = groups.most_blocks
        self._lookahead, self._max_tokens = lookahead, max_tokens

    def slots(self, tokens: int) -> int:
        """Return how many slots a request has after a step that ends at ``tokens`` tokens."""
        return max(tokens, min(tokens + self._lookahead, self._max_tokens))

    def skipped(self, settled: Any) -> Any:
        """Return how many leading blocks are no longer needed, for a count of tokens or an array of counts."""
        return settled * 0

    def find(self, cached: Callable[[int], tuple[int, ...] | None], tokens: int, *, drops: bool = False) -> Found:
        """Return the longest cached prefix of at most ``tokens`` tokens; ``cached`` returns the blocks of a place.

        Args:
            cached: Returns the cached blocks of a place, one of each group; ``None`` where one is not cached.
            tokens: Most tokens of the prefix, the dropped block included.
            drops: Whether the last block is left out, since a draft head wants it computed again.
        """
        found: Found = []
        for i in range(tokens // self.block_size):
            blocks = cached(i)
            if blocks is None:
                break
            found.append(blocks)
        return found[:-1] if drops else found

    def to_admit(self, tokens: int, computed: int, hit_blocks: int, *, whole: bool) -> int:
        """Return how many new blocks of a group a request needs to be admitted.

        Args:
            tokens: Tokens that need blocks, or their slots.
            computed: Leading tokens that were found or are loaded.
            hit_blocks: Number of leading places that were found.
            whole: Whether ``tokens`` is the whole request, where vLLM knows that a window will not hold it all at once.
        """
        return max(self._required(tokens, whole=whole) - max(int(self.skipped(computed)), hit_blocks), 0)

    def _required(self, tokens: int, *, whole: bool) -> int:
        required = blocks_of(tokens, self.block_size) + self.spare
        return min(required, self._most) if whole and self._most else required

    def held_of(self, computed: int) -> int:
        """Return the place of the first block that the token after ``computed`` tokens reads."""
        return max(int(self.skipped(computed)), 0)

    def counted_of(self, hit_tokens: int, computed: int) -> int:
        """Return the place of the first found block that vLLM counts, where it is free, when it admits a request."""
        return self.held_of(computed)

    def lacking(self, table: Table, tokens: int, ahead: int = 0) -> int:
        """Return the new blocks of a group that vLLM reserves so that a request with KV can reach ``tokens`` tokens.

        Args:
            table: The blocks of the request.
            tokens: Tokens of the whole request.
            ahead: Slots that vLLM reserves beyond these tokens for drafts.
        """
        return max(self._required(tokens + ahead, whole=True) - len(table), 0)

    def fill(self, table: Table, tokens: int, take: Callable[[int], list[int]]) -> None:
        """Give the table, which has found blocks, the blocks for the loaded KV of ``tokens`` tokens."""
        table += take(max(blocks_of(tokens, self.block_size) - len(table), 0))

    def growth(self, table: Table, tokens: int) -> int:
        """Return how many new blocks of a group a request needs to have ``tokens`` tokens."""
        return max(blocks_of(self.slots(tokens), self.block_size) + self.spare - len(table), 0)

    def extend(self, table: Table, tokens: int, take: Callable[[int], list[int]]) -> None:
        """Give the table the blocks that :meth:`growth` counted."""
        table += take(self.growth(table, tokens))

    def give_back(self, table: Table, settled: int) -> list[list[int]]:
        """Take the blocks that are no longer needed out of the table; return them in the portions that are freed."""
        freed = []
        for place in range(min(self.skipped(settled), len(table)) - 1, -1, -1):
            if table[place] == NULL:
                break
            freed.append(table[place])
            table[place] = NULL
        return [freed] if freed else []


class Windowed(Whole):
    """The rule for windows: it keeps the blocks that the next token sees.

    It is also the rule for Mamba layers, which see the last token's state alone.
    """

    def __init__(self, groups: KVGroups, lookahead: int = 0, max_tokens: int = MOST_TOKENS) -> None:
        super().__init__(groups, lookahead, max_tokens)
        self._window = groups.window_tokens
        self.keeps_states = groups.window_tokens == STATE_WINDOW

    def skipped(self, settled: Any) -> Any:
        return (settled - self._window + 1) // self.block_size

    def find(self, cached: Callable[[int], tuple[int, ...] | None], tokens: int, *, drops: bool = False) -> Found:
        most = tokens // self.block_size
        if self.keeps_states:
            return _last_state(cached, most)
        wanted = blocks_of(self._window - 1, self.block_size) + drops
        found: Found = [None] * most
        run = 0
        for i in range(most - 1, -1, -1):
            blocks = cached(i)
            if blocks is None:
                run = 0
                continue
            found[i] = blocks
            run += 1
            if run >= wanted:
                return found[: i + run - drops]
        return found[: max(run - drops, 0)]  # from the first place on, fewer blocks are enough


class Chunked(Whole):
    """The rule for chunked local attention: it keeps the blocks from the last multiple of a chunk's tokens on."""

    def __init__(self, groups: KVGroups, lookahead: int = 0, max_tokens: int = MOST_TOKENS) -> None:
        super().__init__(groups, lookahead, max_tokens)
        self._chunk = groups.chunk_tokens

    def skipped(self, settled: Any) -> Any:
        return settled // self._chunk * self._chunk // self.block_size

    def find(self, cached: Callable[[int], tuple[int, ...] | None], tokens: int, *, drops: bool = False) -> Found:
        assert not drops, "vLLM has no prefix cache for chunked local attention with a draft head"
        first = self.skipped(tokens)
        found: Found = [None] * first
        for i in range(first, tokens // self.block_size):
            blocks = cached(i)
            if blocks is None:
                break
            found.append(blocks)
        return found


class States(Whole):
    """The rule for Mamba's states at the ends of chunks (``align``).

    It keeps the state of the last settled token, and of each step in flight.
    """

    keeps_states = True

    def slots(self, tokens: int) -> int:
        return tokens  # slots ahead would break the alignment of blocks and chunks

    def skipped(self, settled: Any) -> Any:
        return (settled - 1) // self.block_size

    def find(self, cached: Callable[[int], tuple[int, ...] | None], tokens: int, *, drops: bool = False) -> Found:
        return _last_state(cached, tokens // self.block_size)

    def to_admit(self, tokens: int, computed: int, hit_blocks: int, *, whole: bool) -> int:
        return min(blocks_of(tokens, self.block_size) + self.spare - hit_blocks, 1 + self.spare)

    def counted_of(self, hit_tokens: int, computed: int) -> int:
        return self.held_of(hit_tokens)  # also a state that a load makes needless

    def lacking(self, table: Table, tokens: int, ahead: int = 0) -> int:
        return self.growth(table, tokens)

    def fill(self, table: Table, tokens: int, take: Callable[[int], list[int]]) -> None:
        super().fill(table, tokens, take)
        table.grown = True

    def growth(self, table: Table, tokens: int) -> int:
        new = blocks_of(tokens, self.block_size) + self.spare - len(table)
        return max(min(new, 1 if table.grown else 1 + self.spare), 0)

    def extend(self, table: Table, tokens: int, take: Callable[[int], list[int]]) -> None:
        required, before = blocks_of(tokens, self.block_size) + self.spare, len(table)
        grown, table.grown = table.grown, True
        if required <= before:
            return
        table.state = before - 1 - (self.spare if grown else 0)
        last = required - self.spare - 1  # the place of this step's state
        table += [NULL] * (last - before)
        if grown:  # the blocks for drafts move on
            for place in range(before - self.spare, min(before, last)):
                table.append(table[place])
                table[place] = NULL
        table += take(required - len(table))

    def give_back(self, table: Table, settled: int) -> list[list[int]]:
        portions = []
        first, end = table.given_back, min(self.skipped(settled), len(table))
        if first < end:
            portions.append([table[place] for place in range(end - 1, first - 1, -1) if table[place] != NULL])
            table[first:end] = [NULL] * (end - first)
            table.given_back = end
        if 0 <= table.state < blocks_of(settled, self.block_size) - 1 and table[table.state] != NULL:
            portions.append([table[table.state]])
            table[table.state] = NULL
        return portions


def _last_state(cached: Callable[[int], tuple[int, ...] | None], most: int) -> Found:
    """Return the last cached state of the first ``most`` blocks; no state before it is needed."""
    for i in range(most - 1, -1, -1):
        blocks = cached(i)
        if blocks is not None:
            return [None] * i + [blocks]
    return []


def kept_by(groups: KVGroups, layout: KVLayout) -> Whole:
    """Return the rule for what layers of these groups keep in an engine with this layout."""
    rule: type[Whole] = Chunked if groups.chunk_tokens else Whole
    if groups.states:
        rule = States
    elif groups.window_tokens:
        rule = Windowed
    return rule(groups, layout.lookahead_tokens, layout.max_model_len)
