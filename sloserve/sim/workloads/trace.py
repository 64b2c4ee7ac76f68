"""A trace: the arrivals and lengths of requests in numpy columns, without texts and SLOs.

Arrivals start at 0 and ascend; every operation gives a new trace that keeps both. Rates count gaps: a trace of n
requests over a span of s seconds has the rate (n - 1) / s, so scaling it to a rate is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.core.request import PREFIX_BLOCK_TOKENS
from sloserve.sim.workloads.seeding import stream


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order of arrival; build one with :func:`make_trace`, which sorts and rebases.

    Args:
        name: Name of the trace.
        source: File or generator that the trace came from.
        arrival_s: Arrivals in seconds from 0, ``[requests]``.
        prompt_tokens: Tokens of each prompt, at least 1, ``[requests]``.
        output_tokens: Tokens of each output, at least 1, ``[requests]``.
        task: The source's own label of each request.
        prefix_ids: Ids of each prompt's blocks of ``block_tokens`` tokens, as in
            :class:`~sloserve.core.request.WorkloadRequest`; ``None`` where the source has none.
        block_tokens: Tokens that one of ``prefix_ids`` stands for.
        reading: Format and units with which a file was read; empty for a trace that was generated.
        tenant: Name of the tenant of each request; ``None`` where the source has none.
    """

    name: str
    source: str
    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    task: list[str]
    prefix_ids: list[tuple[int, ...]] | None = None
    block_tokens: int = PREFIX_BLOCK_TOKENS
    reading: str = ""
    tenant: list[str] | None = None

    def __len__(self) -> int:
        return self.arrival_s.size

    @property
    def span_s(self) -> float:
        """The seconds from the first arrival to the last."""
        return float(self.arrival_s[-1])

    @property
    def rate_per_s(self) -> float | None:
        """The mean arrivals per second, or ``None`` when all arrive at once."""
        return (len(self) - 1) / self.span_s if self.span_s > 0.0 else None

    @property
    def summary(self) -> str:
        """The format and units of the file, the seconds that it spans, and its rate, as text."""
        rate = "all at once" if self.rate_per_s is None else f"{self.rate_per_s:.3g} requests/s"
        return f"{self.reading}; {self.span_s:,.0f} s, {rate}"

    def _span(self, start: int, stop: int) -> "Trace":
        return replace(
            self,
            arrival_s=self.arrival_s[start:stop] - self.arrival_s[start],
            prompt_tokens=self.prompt_tokens[start:stop],
            output_tokens=self.output_tokens[start:stop],
            task=self.task[start:stop],
            prefix_ids=None if self.prefix_ids is None else self.prefix_ids[start:stop],
            tenant=None if self.tenant is None else self.tenant[start:stop],
        )

    def head(self, n: int) -> "Trace":
        """Return the first ``n`` requests, or all if there are fewer.

        Raises: ConfigError if ``n`` is below 1.
        """
        return self._span(0, self._count(n))

    def part(self, start: float, end: float) -> "Trace":
        """Return the requests from the share ``start`` of all up to the share ``end``, rebased to 0.

        Raises: ConfigError where no request lies in this part.
        """
        first, stop = round(start * len(self)), round(end * len(self))
        if first >= stop:
            raise ConfigError(f"trace {self.name!r}: none of its {len(self)} requests lies within {start:g}:{end:g}")
        return self._span(first, stop)

    def window(self, seed: int, n: int) -> "Trace":
        """Return ``n`` successive requests (all, if there are fewer) from a place that ``seed`` chooses, rebased to 0.

        Raises: ConfigError if ``n`` is below 1.
        """
        n = self._count(n)
        start = int(stream(seed, "window").integers(0, len(self) - n + 1))
        return self._span(start, start + n)

    def _count(self, n: int) -> int:
        if n < 1:
            raise ConfigError(f"trace {self.name!r}: {n} requests asked for; the least is 1")
        return min(n, len(self))

    def at_rate(self, rate_per_s: float) -> "Trace":
        """Return the same requests with every gap multiplied by one constant, so that the mean rate is ``rate_per_s``.

        Raises: ConfigError for a rate that is not positive, or when all requests arrive at once and so have no rate.
        """
        rate = self.rate_per_s
        if rate is None:
            raise ConfigError(
                f"trace {self.name!r}: its {len(self)} requests arrive at once, so it has no rate to scale"
            )
        return self.faster(rate_per_s / rate)

    def faster(self, rate_scale: float) -> "Trace":
        """Return the same requests arriving ``rate_scale`` times as fast.

        Raises: ConfigError for a scale that is not a positive number.
        """
        if not (np.isfinite(rate_scale) and rate_scale > 0.0):
            raise ConfigError(f"trace {self.name!r}: a rate is a positive number, not {rate_scale!r}")
        return replace(self, arrival_s=self.arrival_s / rate_scale)


def make_trace(
    name: str,
    source: str,
    arrival_s: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    task: Sequence[str],
    prefix_ids: Sequence[tuple[int, ...]] | None = None,
    tenant: Sequence[str] | None = None,
) -> Trace:
    """Return a trace of columns in any order, sorted by arrival and rebased so that the first arrival is 0.

    Requests with equal arrivals keep their order.

    Raises: ConfigError if there is no request.
    """
    arrivals = np.asarray(arrival_s, np.float64)
    if arrivals.size == 0:
        raise ConfigError(f"{source}: trace has no requests; at least one row is needed")
    order = np.argsort(arrivals, kind="stable")
    return Trace(
        name=name,
        source=source,
        arrival_s=arrivals[order] - arrivals[order[0]],
        prompt_tokens=np.asarray(prompt_tokens, np.int64)[order],
        output_tokens=np.asarray(output_tokens, np.int64)[order],
        task=[task[i] for i in order],
        prefix_ids=None if prefix_ids is None else [prefix_ids[i] for i in order],
        tenant=None if tenant is None else [tenant[i] for i in order],
    )


def merge(name: str, source: str, parts: Sequence[tuple[FloatArray, Trace]]) -> Trace:
    """Return one trace of several parts.

    Each part comes with the arrivals to use for it, in seconds on a common clock, ``[requests of the part]``. Tenants
    and prefix ids are dropped: ids of different parts mean different prompts.
    """
    return make_trace(
        name,
        source,
        np.concatenate([arrivals for arrivals, _ in parts]),
        np.concatenate([part.prompt_tokens for _, part in parts]),
        np.concatenate([part.output_tokens for _, part in parts]),
        [task for _, part in parts for task in part.task],
    )
