"""What follows from the columns of the request table, for some of its slots, compiled: many gathers in one call.

``progress`` is columns of :mod:`sloserve.core.rows`. All functions raise ValueError for a slot that the columns do not
have, for columns of different lengths, and for tokens below 0 or above 2^32 - 1 in one of the slots.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sloserve.core.kernels import _csrc
from sloserve.core.kernels.kv_layout import KVLayout

ProgressColumns = _csrc.ProgressColumns


def counts_of(objects: Sequence[object], names: tuple[str, ...]) -> list[NDArray[np.int64]]:
    """Return attributes of many objects, ``[len(objects)]`` for each name: the number, or else the length of the value.

    This takes a third of the time of a comprehension for each name.

    Raises: AttributeError for a name that an object lacks, TypeError for a value that is no number and has no length.
    """
    return _csrc.counts_of(objects if isinstance(objects, list) else list(objects), names)


def tokens_without_kv(progress: ProgressColumns, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.decode_first.tokens_without_kv`."""
    return _csrc.tokens_without_kv(progress, np.ascontiguousarray(slots))


def uncomputed_tokens(progress: ProgressColumns, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.decode_first.uncomputed_tokens`."""
    return _csrc.uncomputed_tokens(progress, np.ascontiguousarray(slots))


def context_and_uncomputed(
    progress: ProgressColumns, slots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens of prompt and output, and :func:`uncomputed_tokens`, ``[len(slots)]`` each."""
    return _csrc.context_and_uncomputed(progress, np.ascontiguousarray(slots))


def service_order(
    progress: ProgressColumns,
    preemptable: NDArray[np.bool_],
    order: NDArray[np.int64],
    *,
    layout: KVLayout,
    free_blocks: int,
    token_budget: int,
    decode_tokens: int,
) -> NDArray[np.int64]:
    """Return the order of :func:`sloserve.lso.decode_first.service_order`; an empty array where that is ``order``.

    Args:
        progress: Columns of the request table that state the progress of requests.
        preemptable: Whether the request in a slot may be preempted, by slot.
        order: Slots in the order of the policy, ``[n]``.
        layout: The layout of the KV cache.
        free_blocks: KV blocks that are free.
        token_budget: Tokens that the step may compute.
        decode_tokens: Most tokens that a decode takes of the step.
    """
    return _csrc.service_order(
        progress,
        preemptable,
        np.ascontiguousarray(order),
        layout=layout,
        free_blocks=free_blocks,
        token_budget=token_budget,
        decode_tokens=decode_tokens,
    )


def read_counts(
    objects: list[Any], slots: NDArray[np.int64], names: tuple[str, ...], columns: list[NDArray[np.int64]]
) -> None:
    """Read the counts of :func:`counts_of` for the objects in ``slots`` into these slots of ``columns``.

    Args:
        objects: The objects by slot.
        slots: Slots of the objects to read, ``[n]``.
        names: Names of the attributes.
        columns: A column by slot for each name, ``[len(objects)]`` each.

    Raises: the errors of :func:`counts_of`; counts that were read before the error are written.
    """
    _csrc.read_counts(objects, slots, names, columns)


def any_up_to(state: NDArray[np.int8], seq: NDArray[np.int64], last: int, *allowed: int) -> bool:
    """Return whether a slot in one of the states ``allowed`` has a ``seq`` of at most ``last``."""
    return _csrc.any_up_to(state, sum(1 << one for one in allowed), seq, last)


def places_stated(column: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places within ``slots`` at which ``column`` is not nan."""
    return _csrc.places_stated(column, np.ascontiguousarray(slots))


def chunks_scheduled(tokens_of: dict[str, int], ids: list[str], computed: list[int]) -> list[tuple[int, int]]:
    """Return the tokens that the step computes, and the tokens computed before, of ids that get more than one token.

    Args:
        tokens_of: Tokens that the step computes, by id.
        ids: Ids of requests.
        computed: Tokens computed before, for each id of ``ids``.

    Raises: KeyError for an id that ``tokens_of`` lacks.
    """
    return _csrc.chunks_scheduled(tokens_of, ids, computed)


def slots_in_order(objects: list[Any], slots: NDArray[np.int64], order: Sequence[object]) -> NDArray[np.int64]:
    """Return ``slots`` in the order in which ``order`` has their objects; slots of other objects are left out.

    Objects are compared by identity; their values are not read.
    """
    return _csrc.slots_in_order(objects, slots, order if isinstance(order, list) else list(order))


def moved_to_front(
    present: Iterable[Any], objects: list[Any], slots: NDArray[np.int64]
) -> tuple[list[Any], list[Any]] | None:
    """Return the objects in ``slots`` that are among ``present``, and the others of ``present``, each in order.

    The result is ``None`` if ``present`` begins with these objects already. Objects are compared by identity. No slot
    occurs twice.
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
    """Return the slots of ``objects``, in order, that have their attribute ``name`` in ``slot_of``.

    Only the first ``most`` slots are returned, if it is not ``None``.

    Raises: AttributeError for an object without that attribute.
    """
    return _csrc.slots_found(slot_of, objects, name, -1 if most is None else most)


def slots_misused(slots: NDArray[np.int64], state: NDArray[np.int8], *allowed: int) -> str | None:
    """Return what is wrong with slots that should each be named once, in one of the states ``allowed``.

    The result is ``"outside"`` if a slot is not among the slots of ``state``, else ``"twice"``, else ``"state"``, and
    ``None`` if nothing is wrong.
    """
    found = _csrc.slots_misused(np.ascontiguousarray(slots, np.int64), state, sum(1 << one for one in allowed))
    return (None, "state", "twice", "outside")[found]


def split_running(
    progress: ProgressColumns, slots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the slots that decode, which have no uncomputed tokens, the other slots, and the context of the former.

    The slots keep the order of ``slots``. The context is the tokens of prompt and output of all decoding requests.
    """
    return _csrc.split_running(progress, np.ascontiguousarray(slots))


def token_pace(tpot_s: NDArray[np.float64], tds: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """See :func:`sloserve.lso.pace.pace_s`."""
    return _csrc.token_pace(tpot_s, tds, np.ascontiguousarray(slots))


def without_targets(
    slots: NDArray[np.int64],
    *,
    ttft_s: NDArray[np.float64],
    tpot_s: NDArray[np.float64],
    e2e_s: NDArray[np.float64],
    tds: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return which of ``slots`` have nan in all four columns, ``[len(slots)]``."""
    return _csrc.without_targets(np.ascontiguousarray(slots), ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=e2e_s, tds=tds)
