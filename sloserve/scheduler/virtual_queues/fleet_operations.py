"""What a virtual queue asks of its instance: pull, preempt, park, switch models, keep models warm, as plain values.

All follows from the order of the queue: its first groups, as long as they are of the active model, are pulled from; a
head of another model ends pulling, and the model is switched once its streams have ended; models further back are kept
in host memory, in the order of the queue, as far as there is room. Running requests give way only when the head has
changed. Whether the KV of a request that gives way is dropped or swapped is decided for each request by its cost
(``lso/swapping.py``), inside the engine.

Source: QLM, Sec. 5. Load balancing is the plan's assignment itself, and needs no operation.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Queued(NamedTuple):
    """A group in a virtual queue.

    Args:
        due_s: Deadline of its request that is due first, in epoch seconds; inf for none.
    """

    ref: int
    model: str
    due_s: float


@dataclass(frozen=True, slots=True)
class FleetOperations:
    """What one instance has to do now, groups by their references.

    Args:
        pull: Groups to take requests from while there is room, in this order.
        preempt: Groups of which running requests give way to the first of ``pull``, in this order, as far as it needs.
        park: Groups of which running requests that do not stream return to the queue with their tokens so far, since
            their model leaves.
        switch_to: Model to switch to once nothing runs; ``None`` if the active one stays.
        warm: Models to have in host memory, the most needed first.
        drop: Models to remove from host memory.
    """

    pull: tuple[int, ...] = ()
    preempt: tuple[int, ...] = ()
    park: tuple[int, ...] = ()
    switch_to: str | None = None
    warm: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def fleet_operations(
    queue: Sequence[Queued],
    *,
    active: str | None,
    last_head: int | None,
    running: Sequence[Queued],
    warm: Collection[str],
    weights_bytes: Mapping[str, int],
    host_bytes: int,
) -> FleetOperations:
    """Return what an instance has to do for its virtual queue.

    Args:
        queue: Groups of the queue, the head first.
        active: Model on the instance's device.
        last_head: Reference of the head at the previous call.
        running: Groups of which it runs requests.
        warm: Models in host memory.
        weights_bytes: Bytes of the weights of each model that may be warm.
        host_bytes: Bytes of host memory for models that are not active.
    """
    head = queue[0] if queue else None
    comes = head.model if head is not None and head.model != active else None
    stays = active if comes is None else comes
    wanted = [one.model for one in queue if one.model != stays]
    # Models that nothing asks for stay warm while there is room, the one that leaves before all others.
    wanted += [model for model in (active, *sorted(warm)) if model is not None and model != stays]
    kept, room = [], host_bytes
    for model in dict.fromkeys(wanted):
        if model in weights_bytes and weights_bytes[model] <= room:
            kept.append(model)
            room -= weights_bytes[model]
    drop = tuple(model for model in sorted(warm) if model not in kept and model != stays)
    if head is None or comes is not None:
        park = tuple(one.ref for one in running) if comes is not None else ()
        return FleetOperations(park=park, switch_to=comes, warm=tuple(kept), drop=drop)
    others = next((k for k, one in enumerate(queue) if one.model != active), len(queue))
    later = sorted((one for one in running if one.ref != head.ref and one.due_s > head.due_s), key=_latest_first)
    return FleetOperations(
        pull=tuple(one.ref for one in queue[:others]),
        preempt=tuple(one.ref for one in later) if head.ref != last_head else (),
        warm=tuple(kept),
        drop=drop,
    )


def _latest_first(one: Queued) -> tuple[float, int]:
    return -one.due_s, -one.ref
