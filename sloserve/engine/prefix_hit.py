"""How much of a waiting request the prefix cache holds, asked for a few blocks instead of all."""

from collections.abc import Callable, Iterable


def blocks_hit(is_cached: Callable[[int], object], most: int, before: int) -> int:
    """How many blocks from a request's first the prefix cache holds, of ``most``.

    A prefix cache gives up the last blocks of a prompt first, so the search goes by halves: two questions where nothing
    has changed, and of a long prompt two for each doubling of its blocks. (Where an engine drops them in another order
    this is an estimate, too high at most.)

    Args:
        is_cached: whether the cache holds the request's block of this number, from 0.
        most: the last block that may be asked for is the one before it.
        before: the answer of last time.
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
    is_cached: Callable[[int, int], object], kinds: int, whole: Iterable[int], most: int, before: int
) -> bool:
    """Whether a hit of ``before`` blocks, above 0, that layers of several kinds agreed on is there still, and no longer
    one can be: two questions a kind. (What a window has lost of its middle is not seen, so the hit may be less.)

    Args:
        is_cached: whether the cache holds, for a kind of layers, the request's block of this number.
        kinds: how many.
        whole: those that keep all tokens: the cache has none of their blocks after the first that it lacks.
        most: the last block that a hit may have is the one before it.
    """
    if not all(is_cached(kind, before - 1) for kind in range(kinds)):
        return False
    return before >= most or any(not is_cached(kind, before) for kind in whole)
