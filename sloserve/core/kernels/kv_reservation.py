"""KV cache blocks that requests reserve over future engine steps: what may be admitted so that no allocation fails.

There are two forms. :class:`KvReservation` counts what all requests will hold at each future step. :class:`KvHosting`
is the rule of EconoServe (Sec. 3.2), which lends the second halves of allocated spans; the first form admits whatever
it admits.

A step is one call of the engine in which each running request gets one token; ``advance(step)`` says that the steps
before ``step`` have run. Ids are integers that the caller chooses, such as row indices. Arrays are ``[n]``, or one
value for all. Predicted lengths may be fractions; they are rounded up, as tokens are to blocks. If one request of many
raises an exception, the earlier requests have been booked.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import BoolArray, IntArray
from sloserve.core.kernels import _csrc

FOREVER: Final = 2**62
"""``hold_steps`` of a request that keeps its blocks until it is booked again: it is paused, or does not decode yet.

Its ``grow_steps`` are not read.
"""


def _columns(*values: ArrayLike) -> IntArray:
    if all(isinstance(value, int) for value in values):  # one request; row by row takes three times as long
        return np.array(values, np.int64)[:, None]
    columns = np.empty((len(values), np.size(values[0])), np.int64)
    for row, value in zip(columns, values, strict=True):
        array = np.asarray(value)
        row[:] = array if array.dtype.kind in "iu" else np.ceil(array)
    return columns


def _ids(ids: ArrayLike) -> IntArray:
    return np.atleast_1d(np.asarray(ids, np.int64))


class KvReservation:
    """Predicted KV occupancy, exact in blocks, at each future step.

    A request holds ``tokens`` (a prompt counts whole, however it is chunked) for ``hold_steps``, then takes one token
    more in each of ``grow_steps``, then its blocks are free. A request with p steps of prefill and o tokens of output
    has hold p and grow o - 1, since the last token is never computed. A request that decodes, with r tokens to come,
    has hold 0 and grow r. Engines that schedule a step ahead of their output see each end one step late: add one to
    grow.

    Growth as predicted needs no call. A request past its predicted end is counted with what it held last, until it is
    removed or booked again. A change or a question costs the request's own future steps, however many other requests
    there are; with a ``hold_steps`` of FOREVER, a question costs the steps to the last predicted end. A paused request
    keeps blocks that others may count on: unless the pause is forced, ask whether it fits, as for anything else.
    """

    def __init__(self, capacity_blocks: int, block_size: int, now: int = 0) -> None:
        self.capacity_blocks: Final = capacity_blocks
        self._steps = _csrc.KvReservation(capacity_blocks, block_size, now)

    @property
    def now(self) -> int:
        """The step that runs next."""
        return self._steps.now

    @property
    def visited_steps(self) -> int:
        """Future steps that changes and questions have read or written so far, as a measure of their cost."""
        return self._steps.visited

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, id: int) -> bool:
        return id in self._steps

    def put(self, ids: ArrayLike, tokens: ArrayLike, *, hold_steps: ArrayLike = 0, grow_steps: ArrayLike = 0) -> None:
        """Book what requests hold and will hold, whether it fits or not, in place of what was booked for them.

        Call it for facts: progress that differs from the prediction, a new prediction, or a pause.

        Args:
            ids: Ids of the requests, ``[n]``.
            tokens: Tokens that each request holds now, ``[n]`` or one value for all.
            hold_steps: Steps for which it holds them, ``[n]`` or one value for all.
            grow_steps: Following steps in which it takes one more token each, ``[n]`` or one value for all.
        """
        self._steps.put(_columns(ids, tokens, hold_steps, grow_steps))

    def fits(
        self,
        ids: ArrayLike,
        tokens: ArrayLike,
        *,
        hold_steps: ArrayLike = 0,
        grow_steps: ArrayLike = 0,
        reserve_blocks: int = 0,
    ) -> BoolArray:
        """Return whether each request, alone, could be booked with ``reserve_blocks`` left at every future step.

        What was booked for a known request does not count against it.
        """
        return self._steps.fits(_columns(ids, tokens, hold_steps, grow_steps), reserve_blocks).view(np.bool_)

    def admit(
        self,
        ids: ArrayLike,
        tokens: ArrayLike,
        *,
        hold_steps: ArrayLike = 0,
        grow_steps: ArrayLike = 0,
        reserve_blocks: int = 0,
        stop_at_misfit: bool = False,
    ) -> BoolArray:
        """Book each request in turn if it fits beside the ones before it; return whether each was booked.

        A known request that is refused keeps what it had.

        Args:
            ids: Ids of the requests in order, ``[n]``.
            tokens: Tokens that each request holds now, ``[n]`` or one value for all.
            hold_steps: Steps for which it holds them, ``[n]`` or one value for all.
            grow_steps: Following steps in which it takes one more token each, ``[n]`` or one value for all.
            reserve_blocks: Blocks that must stay free at every future step.
            stop_at_misfit: Whether no request is booked after the first that does not fit.
        """
        columns = _columns(ids, tokens, hold_steps, grow_steps)
        return self._steps.admit(columns, reserve_blocks, stop_at_misfit).view(np.bool_)

    def grantable(
        self,
        ids: ArrayLike,
        tokens: ArrayLike,
        *,
        up_to: ArrayLike,
        hold_steps: ArrayLike = 0,
        reserve_blocks: int = 0,
    ) -> IntArray:
        """Return the most ``grow_steps``, at most ``up_to``, with which each would fit alone; 0 if none would."""
        return self._steps.grantable(_columns(ids, tokens, hold_steps, up_to), reserve_blocks)

    def remove(self, ids: ArrayLike) -> None:
        """Free the blocks of requests that ended or lost their KV.

        Raises: ValueError for an unknown id.
        """
        self._steps.remove(_ids(ids))

    def advance(self, step: int) -> None:
        """Record that all steps before ``step`` have run.

        Raises: ValueError for a step in the past.
        """
        self._steps.advance(step)

    def overrunners(self, within_steps: int = 0) -> tuple[IntArray, IntArray]:
        """Return ids of requests with a predicted end up to ``within_steps`` from now, and when each is due.

        They are in order of (end, id).

        A request is due at the first step for which, if it goes on, it takes a block that is not counted: extend or
        pause it before. A pause frees nothing: if :meth:`first_over` names a step, preempt some requests before that
        step.
        """
        return self._steps.overrunners(within_steps)

    def first_over(self, reserve_blocks: int = 0) -> int | None:
        """Return the earliest step at which fewer than ``reserve_blocks`` are left; ``None`` if there is none."""
        return self._steps.first_over(reserve_blocks)

    def headroom(self, step: int) -> int:
        """Return the blocks that no request will hold while ``step`` runs; negative if more are promised than exist."""
        return self.capacity_blocks - self._steps.occupied(step)


class KvHosting:
    """Exact allocation, and hosting in the second halves of allocated spans, with a buffer of b tokens.

    A request gets blocks of its own for what it holds and all that is to come (:meth:`allocate`); or it gets them for
    what it holds alone, and grows in the span of a host (:meth:`host`). Spans are lent in the step in which their owner
    starts. csrc/include/sloserve/kv_hosting.h says how the paper was read.
    """

    def __init__(self, capacity_blocks: int, block_size: int, now: int = 0) -> None:
        self._spans = _csrc.KvHosting(capacity_blocks, block_size, now)

    @property
    def now(self) -> int:
        """The step that runs next."""
        return self._spans.now

    @property
    def free_blocks(self) -> int:
        """Blocks that are not allocated."""
        return self._spans.free_blocks

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, id: int) -> bool:
        return id in self._spans

    def allocate(
        self,
        ids: ArrayLike,
        tokens: ArrayLike,
        *,
        grow_steps: ArrayLike = 0,
        reserve_blocks: int = 0,
        stop_at_misfit: bool = False,
    ) -> BoolArray:
        """Allocate to each request in turn the blocks of its ``tokens`` and all ``grow_steps`` to come.

        The result says whether each request got them. They replace what it had.

        Args:
            ids: Ids of the requests in order, ``[n]``.
            tokens: Tokens that each request holds now, ``[n]`` or one value for all.
            grow_steps: Steps in which it takes one more token each, ``[n]`` or one value for all.
            reserve_blocks: Blocks that must stay free; a request that would leave fewer gets none.
            stop_at_misfit: Whether no request gets blocks after the first that does not fit.
        """
        columns = _columns(ids, tokens, grow_steps, 0)
        return self._spans.allocate(columns, reserve_blocks, stop_at_misfit).view(np.bool_)

    def host(
        self,
        ids: ArrayLike,
        tokens: ArrayLike,
        *,
        grow_steps: ArrayLike,
        buffer_tokens: ArrayLike,
        reserve_blocks: int = 0,
    ) -> tuple[IntArray, IntArray]:
        """Find guests for the requests that started in this step.

        The result is the guests' indices, in order, and their hosts' ids.

        Candidates wait, in queue order. The blocks of what they hold are theirs already, or are taken from the free
        blocks beyond ``reserve_blocks``.

        Raises: ValueError for a request that grows already.
        """
        return self._spans.host(_columns(ids, tokens, grow_steps, buffer_tokens), reserve_blocks)

    def remove(self, ids: ArrayLike) -> None:
        """Free the blocks of requests that ended or lost their KV, except for spans in which guests grow.

        Raises: ValueError for an unknown id.
        """
        self._spans.remove(_ids(ids))

    def advance(self, step: int) -> None:
        """Record that all steps before ``step`` have run.

        Raises: ValueError for a step in the past.
        """
        self._spans.advance(step)

    def overrunners(self, within_steps: int = 0) -> tuple[IntArray, IntArray]:
        """Return growing requests that need a block that they lack, or that their host needs back, and the step.

        They are in order of the step.

        To pause such a guest frees nothing: allocate blocks of its own to it, or preempt it.
        """
        return self._spans.overrunners(within_steps)
