"""What follows from the columns of the request table, for some of its slots, compiled: many gathers in one call.

``progress`` is the columns ``(prompt_tokens, output_tokens, computed_tokens, swapped_tokens, hit_tokens)`` of
:mod:`sloserve.core.rows`. All raise ValueError for a slot that the columns do not have, and for tokens below 0 or above
2^32 - 1 in one of the slots.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sloserve.core.kernels import _csrc
from sloserve.core.kernels.kv_layout import KVLayout

Progress = tuple[NDArray[np.int64], ...]


def counts_of(objects: Sequence[object], names: tuple[str, ...]) -> list[NDArray[np.int64]]:
    """Attributes of many objects, ``[len(objects)]`` for each name: the number, or how many it holds if it is none.

    A third of the time of a comprehension for each.

    Raises: AttributeError for a name that one does not have, TypeError for what is no number and holds nothing.
    """
    return _csrc.counts_of(objects if isinstance(objects, list) else list(objects), names)


def tokens_without_kv(progress: Progress, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.decode_first.tokens_without_kv`."""
    return _csrc.tokens_without_kv(progress, np.ascontiguousarray(slots))


def uncomputed_tokens(progress: Progress, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.decode_first.uncomputed_tokens`."""
    return _csrc.uncomputed_tokens(progress, np.ascontiguousarray(slots))


def context_and_uncomputed(progress: Progress, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of prompt and output, and :func:`uncomputed_tokens`, ``[len(slots)]`` each."""
    return _csrc.context_and_uncomputed(progress, np.ascontiguousarray(slots))


def service_order(
    progress: Progress,
    preemptable: NDArray[np.bool_],
    order: NDArray[np.int64],
    *,
    layout: KVLayout,
    free_blocks: int,
    token_budget: int,
    decode_tokens: int,
) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.decode_first.service_order`; empty where it is ``order``. preemptable: a column."""
    slots = np.ascontiguousarray(order)
    return _csrc.service_order(progress, preemptable, slots, layout, free_blocks, token_budget, decode_tokens)


def read_counts(
    objects: list[Any], slots: NDArray[np.int64], names: tuple[str, ...], columns: list[NDArray[np.int64]]
) -> None:
    """As :func:`counts_of`, of the objects in ``slots``: into these slots of ``columns``, ``[len(objects)]`` each.

    Raises: as there; what was read before is written then.
    """
    _csrc.read_counts(objects, slots, names, columns)


def any_up_to(state: NDArray[np.int8], seq: NDArray[np.int64], last: int, *allowed: int) -> bool:
    """Whether a slot in one of the states ``allowed`` has a ``seq`` of at most ``last``."""
    return _csrc.any_up_to(state, sum(1 << one for one in allowed), seq, last)


def places_stated(column: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of those of ``slots`` for which ``column`` is not nan."""
    return _csrc.places_stated(column, np.ascontiguousarray(slots))


def chunks_scheduled(tokens_of: dict[str, int], ids: list[str], computed: list[int]) -> list[tuple[int, int]]:
    """Tokens, and tokens computed before, of those of ``ids`` that get more than one token. computed: of each id.

    Raises: KeyError for an id that ``tokens_of`` lacks.
    """
    return _csrc.chunks_scheduled(tokens_of, ids, computed)


def slots_in_order(objects: list[Any], slots: NDArray[np.int64], order: Sequence[object]) -> NDArray[np.int64]:
    """``slots`` in the order in which ``order`` has their objects; those of others are left out.

    Which object it is decides, not what it is equal to: none is looked at.
    """
    return _csrc.slots_in_order(objects, slots, order if isinstance(order, list) else list(order))


def moved_to_front(
    present: Iterable[Any], objects: list[Any], slots: NDArray[np.int64]
) -> tuple[list[Any], list[Any]] | None:
    """The objects in ``slots`` as far as they are among ``present``, and the others of ``present``, each in its order.

    ``None`` where the first of ``present`` are these already. Which object it is decides. No slot is there twice.
    """
    slots = np.ascontiguousarray(slots, np.int64)
    if not isinstance(present, list):
        if _csrc.moved_to_front(list(islice(present, slots.size)), objects, slots) is None:
            return None
        present = list(present)
    return _csrc.moved_to_front(present, objects, slots)


def slots_found(
    slot_of: dict[str, int], objects: Iterable[object], name: str, most: int | None = None
) -> NDArray[np.int64]:
    """Slots of those of ``objects``, in order, whose attribute ``name`` is in ``slot_of``; the first ``most`` of them.

    Raises: AttributeError for an object without that attribute.
    """
    return _csrc.slots_found(slot_of, objects, name, -1 if most is None else most)


def slots_misused(slots: NDArray[np.int64], state: NDArray[np.int8], *allowed: int) -> str | None:
    """What is wrong with slots that should each be named once, in one of the states ``allowed``; ``None`` for nothing.

    ``"outside"``: one is none of ``state``'s; else ``"twice"``, else ``"state"``.
    """
    found = _csrc.slots_misused(np.ascontiguousarray(slots, np.int64), state, sum(1 << one for one in allowed))
    return (None, "state", "twice", "outside")[found]


def split_running(progress: Progress, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Those of ``slots`` that decode, which have no uncomputed tokens; the others; and the tokens of prompt and output
    of the former. Each in this order.
    """
    return _csrc.split_running(progress, np.ascontiguousarray(slots))


def token_pace(tpot_s: NDArray[np.float64], tds: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """See :func:`sloserve.lso.pace.pace_s`."""
    return _csrc.token_pace(tpot_s, tds, np.ascontiguousarray(slots))


def without_targets(targets: tuple[NDArray[np.float64], ...], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether all four of the columns ``targets`` are nan, ``[len(slots)]``."""
    return _csrc.without_targets(targets, np.ascontiguousarray(slots))
