"""Plans for requests served in successive batches: order and batch boundaries, by simulated annealing.

The model of the simulated-annealing paper is used (csrc/include/sloserve/batch_plan.h); times are linear in the batch
size, so that any latency model can be brought into this form.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import _csrc
from sloserve.core.kernels._csrc import BatchRow


@dataclass(frozen=True, slots=True)
class Cooling:
    """The annealer's temperatures, in requests: a plan worse by T of n requests' part of G is accepted with chance 1/e.

    The temperature starts at ``initial``, is multiplied by ``tau`` after each ``moves`` moves, and ends below
    ``final``. tau is the paper's; the default makes 45 * 9 moves.
    """

    initial: float = 0.6
    final: float = 0.06
    tau: float = 0.95
    moves: int = 9


@dataclass(frozen=True, slots=True, eq=False)
class BatchTimes:
    """Seconds that requests take in a batch of size b: prefill ``base + slope * b``, and likewise all decode steps.

    Args:
        prefill_base_s: Constant part of the prefill time in seconds, ``[n]``.
        prefill_slope_s: Part of the prefill time that grows with the batch size, seconds, ``[n]`` or one value for all.
        decode_base_s: Constant part of the time of all decode steps in seconds, ``[n]`` or one value for all.
        decode_slope_s: Part of the decode time that grows with the batch size, seconds, ``[n]`` or one value for all.
        share: Part of the request's time during which the next batch has to wait; 1 in the paper.
    """

    prefill_base_s: FloatArray
    prefill_slope_s: FloatArray | float = 0.0
    decode_base_s: FloatArray | float = 0.0
    decode_slope_s: FloatArray | float = 0.0
    share: FloatArray | float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class BatchRequests:
    """Requests to plan, in order of arrival: one matrix, ``[9, n]``; ``BatchRow`` names its rows."""

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
        """Return requests that take these times.

        Args:
            times: Seconds that the requests take.
            waited_s: Seconds since arrival, ``[n]`` or one value for all.
            ttft_s: TTFT targets in seconds, ``[n]`` or one value for all; nan for no target.
            decode_limit_s: TPOT target * output tokens in seconds, ``[n]`` or one value for all; nan for no target.
            e2e_s: Targets of the end-to-end latency in seconds, ``[n]`` or one value for all; nan for no target.
        """
        columns = np.empty((len(BatchRow), times.prefill_base_s.size))
        columns[BatchRow.PREFILL_BASE_S] = times.prefill_base_s
        columns[BatchRow.PREFILL_SLOPE_S] = times.prefill_slope_s
        columns[BatchRow.DECODE_BASE_S] = times.decode_base_s
        columns[BatchRow.DECODE_SLOPE_S] = times.decode_slope_s
        columns[BatchRow.SHARE] = times.share
        columns[BatchRow.WAITED_S] = waited_s
        columns[BatchRow.TTFT_S] = ttft_s
        columns[BatchRow.DECODE_LIMIT_S] = decode_limit_s
        columns[BatchRow.E2E_S] = e2e_s
        return cls(columns)

    def __len__(self) -> int:
        return int(self.columns.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class BatchPlan:
    """A plan: which requests are served in which batch.

    Args:
        order: Indices of the requests in order of service, ``[n]``.
        sizes: Sizes of the batches in order of service, ``[batches]``.
        met: Number of requests that meet every target they have.
        latency_s: Sum of the end-to-end latencies in seconds.
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
    """Return a plan with a high G; the first ``fixed`` requests run already and stay in the first batch.

    The same arguments give the same plan, on every platform.

    Raises: ValueError for times that are not finite, limits that contradict each other, or a cooling without an end.
    """
    cooling = cooling or Cooling()
    return BatchPlan(
        *_csrc.anneal(
            requests.columns,
            max_batch,
            fixed=fixed,
            initial=cooling.initial,
            final=cooling.final,
            tau=cooling.tau,
            moves=cooling.moves,
            seed=seed,
        )
    )


def exhaustive(requests: BatchRequests, max_batch: int, *, fixed: int = 0) -> BatchPlan:
    """Return the plan with the highest G, of at most 12 requests; it serves tests and benchmarks.

    Raises: ValueError as :func:`anneal`, and for more requests.
    """
    return BatchPlan(*_csrc.exhaustive(requests.columns, max_batch, fixed=fixed))
