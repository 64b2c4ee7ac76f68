"""The number of prompt tokens that one id of ``hash_ids`` stands for, which the number of ids of the prompts shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.readers.source import RawRows, bad_cell

SIZES: Final = tuple(2**power for power in range(4, 14))
"""The block sizes that are tried, in tokens: from 16, vLLM's default, to 8192."""

_MOST_ID: Final = 2**31 - 1
"""The largest id that is kept; larger ids are renumbered, since an engine in virtual time uses ids as token ids."""


def block_tokens(path: Path, rows: RawRows, given: int | None) -> int:
    """Return the tokens of a block: ``given``, else the format's own size, else the one size that fits all rows.

    Fewer ids than blocks are no contradiction: they may stand for the shared part of a prompt alone. Only a row with
    more ids than its prompt has blocks says that the size is another one.

    Raises: ConfigError for rows that fit no size, or several; it names the flag to give.
    """
    if rows.prefix_ids is None:
        return rows.block_tokens
    ids = np.array([len(one) for one in rows.prefix_ids], np.int64)
    has_ids = ids > 0
    ids, prompts = ids[has_ids], rows.prompt_tokens[has_ids]
    size = given or rows.block_tokens
    if given is None and (ids > -(-prompts // size)).any():
        fitting = [other for other in SIZES if _fills(ids, prompts, other).all()]
        if len(fitting) > 1:
            raise ConfigError(
                f"{path}: the ids of 'hash_ids' may stand for blocks of {', '.join(map(str, fitting))} tokens; give "
                "the number with --trace-block-tokens"
            )
        size = fitting[0] if fitting else size
    too_many = ids > -(-prompts // size)
    if too_many.any():
        row = int(np.flatnonzero(has_ids)[too_many.argmax()])
        raise _too_many(path, rows, row, size)
    return size


def small_ids(prefix_ids: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the ids, renumbered in order of appearance if one of them exceeds 31 bits."""
    if max((max(ids) for ids in prefix_ids if ids), default=0) <= _MOST_ID:
        return list(prefix_ids)
    numbers: dict[int, int] = {}
    return [tuple(numbers.setdefault(one, len(numbers)) for one in ids) for ids in prefix_ids]


def _fills(ids: IntArray, prompts: IntArray, size: int) -> np.ndarray:
    """Return for each prompt whether its ids stand for all its blocks, with or without the last, partial one."""
    fits: np.ndarray = (ids == prompts // size) | (ids == -(-prompts // size))
    return fits


def _too_many(path: Path, rows: RawRows, row: int, size: int) -> ConfigError:
    prompt, ids = int(rows.prompt_tokens[row]), len((rows.prefix_ids or [])[row])
    return bad_cell(
        path,
        rows.lines[row] if rows.lines is not None else 0,
        "hash_ids",
        f"{ids} ids",
        f"possible for {prompt} prompt tokens, which fill {-(-prompt // size)} blocks of {size}; give the size of the "
        "blocks with --trace-block-tokens",
    )
