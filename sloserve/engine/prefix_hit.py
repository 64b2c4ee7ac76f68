"""Search for how much of a waiting request the prefix cache holds, which looks at a few blocks instead of all."""

from collections.abc import Callable, Collection, Iterable


def blocks_hit(is_cached: Callable[[int], object], most: int, before: int) -> int:
    """Return how many blocks from a request's first the prefix cache holds, of ``most``.

    A prefix cache gives up the last blocks of a prompt first, so the search goes by halves: two questions where nothing
    has changed, and of a long prompt two for each doubling of its blocks. (Where an engine drops them in another order
    this is an estimate, too high at most.)

    Args:
        is_cached: Function that returns whether the cache holds the request's block of this number, from 0.
        most: Number of blocks that may be looked up, from the first.
        before: The result of the last call.
    """
    low, high = min(before, most), most
    if low and not is_cached(low - 1):
        low, high = 0, low - 1
    step = 1
    while low < high:
        probe = min(low + step, high)
        if not is_cached(probe - 1):
            high = probe - 1
            break
        low = probe
        step *= 2
    while low < high:
        probe = (low + high + 1) // 2
        if is_cached(probe - 1):
            low = probe
        else:
            high = probe - 1
    return low


def is_unchanged(
    is_cached: Callable[[int, int], object],
    kinds: int,
    whole: Iterable[int],
    most: int,
    before: int,
    dropping: Collection[int] = (),
) -> bool:
    """Return whether a hit that layers of several kinds agreed on still exists and cannot be longer.

    That takes two questions a kind. (What a window has lost of its middle is not seen, so the hit may be less.)

    Args:
        is_cached: Function that returns whether the cache holds, for a kind of layers, the request's block of this
            number.
        kinds: Number of kinds of layers.
        whole: Kinds that keep all tokens: the cache has none of their blocks after the first that it lacks.
        most: Most blocks that may be looked up, the dropped block included.
        before: Blocks of the hit, above 0.
        dropping: Kinds that leave out the last block of a prefix, since a draft head wants it computed again.
    """
    found = [before + (kind in dropping) for kind in range(kinds)]
    if not all(is_cached(kind, blocks - 1) for kind, blocks in enumerate(found)):
        return False
    return before + bool(dropping) >= most or any(not is_cached(kind, found[kind]) for kind in whole)
