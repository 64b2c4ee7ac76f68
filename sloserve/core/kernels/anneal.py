"""Plans for requests served in successive batches: order and batch boundaries, by simulated annealing.

The model is that of the simulated-annealing paper (csrc/include/sloserve/batch_plan.h); times are linear in the batch
size, so that any latency model can be brought into this form.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import _csrc


@dataclass(frozen=True, slots=True)
class Cooling:
    """The annealer's temperatures, in requests: a plan worse by T of n requests' part of G is accepted with chance 1/e.

    From ``initial``, times ``tau`` after each ``moves`` moves, until below ``final``. tau is the paper's; the default
    makes 45 * 9 moves.
    """

    initial: float = 0.6
    final: float = 0.06
    tau: float = 0.95
    moves: int = 9


@dataclass(frozen=True, slots=True, eq=False)
class BatchTimes:
    """How long requests take in a batch of b: prefill base + slope * b, and all decode steps together likewise.

    Columns ``[n]``, in seconds; beside the first also one value for all. share: part of its time during which the next
    batch has to wait; 1 in the paper.
    """

    prefill_base_s: FloatArray
    prefill_slope_s: FloatArray | float = 0.0
    decode_base_s: FloatArray | float = 0.0
    decode_slope_s: FloatArray | float = 0.0
    share: FloatArray | float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class BatchRequests:
    """Requests to plan, in order of arrival: one matrix, ``[9, n]``, whose rows :meth:`of` names."""

    columns: FloatArray

    @classmethod
    def of(
        cls,
        times: BatchTimes,
        *,
        waited_s: ArrayLike = 0.0,
        ttft_s: ArrayLike = np.nan,
        decode_limit_s: ArrayLike = np.nan,
        e2e_s: ArrayLike = np.nan,
    ) -> Self:
        """Requests of these times; each argument is a column ``[n]`` or one value for all, nan for no such target.

        waited_s: since arrival. decode_limit_s: TPOT target * output tokens.
        """
        values: tuple[ArrayLike, ...] = (
            times.prefill_base_s,
            times.prefill_slope_s,
            times.decode_base_s,
            times.decode_slope_s,
            times.share,
            waited_s,
            ttft_s,
            decode_limit_s,
            e2e_s,
        )
        columns = np.empty((len(values), times.prefill_base_s.size))
        for row, value in zip(columns, values, strict=True):
            row[:] = value
        return cls(columns)

    def __len__(self) -> int:
        return int(self.columns.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """order: indices of the requests ``[n]``; sizes: of the batches, ``[batches]``, in the same order.

    met: requests that meet every target they have. latency_s: the end-to-end latencies, summed.
    """

    order: IntArray
    sizes: IntArray
    met: int
    latency_s: float

    @property
    def goodput(self) -> float:
        """G of the paper, Eq. 2: requests that meet their targets over the summed latency, per second."""
        return self.met / self.latency_s if self.latency_s else 0.0


def anneal(
    requests: BatchRequests, max_batch: int, *, fixed: int = 0, cooling: Cooling | None = None, seed: int = 0
) -> BatchPlan:
    """A plan with a high G; the first ``fixed`` requests run already and stay in the first batch.

    The same arguments give the same plan, on every platform.

    Raises: ValueError for times that are not finite, limits that contradict each other, or a cooling without an end.
    """
    cooling = cooling or Cooling()
    return BatchPlan(
        *_csrc.anneal(
            requests.columns, max_batch, fixed, cooling.initial, cooling.final, cooling.tau, cooling.moves, seed
        )
    )


def exhaustive(requests: BatchRequests, max_batch: int, *, fixed: int = 0) -> BatchPlan:
    """For tests and benchmarks: the plan with the highest G, of at most 12 requests.

    Raises: ValueError as :func:`anneal`, and for more requests.
    """
    return BatchPlan(*_csrc.exhaustive(requests.columns, max_batch, fixed))
