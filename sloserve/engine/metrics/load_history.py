"""Ten minutes of a server's load: a sample every five seconds, kept with or without watchers.

Each API process keeps samples of its own counters on its board (:mod:`sloserve.engine.metrics.process_page`). A reader
adds up the boards of all processes, and makes rates and shares of the differences between samples. Figures of the whole
server, which each process reads from the same engines, are not added up.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import FloatArray

EVERY_S: Final = 5.0
"""Seconds between two samples."""
SPAN_S: Final = 600.0
"""Seconds of history that a watcher gets."""
MOST_CLASSES: Final = 8
"""Classes with a history of their attainment, the first ones of the table."""
SHARE_SPAN_S: Final = 60.0
"""Seconds over which shares are taken: five seconds may hold too few requests."""

COUNTERS: Final = (
    "requests", "refused", "prompt_tokens", "output_tokens", "prefix_queries", "prefix_hits", "draft_tokens",
    "accepted_tokens",
)  # fmt: skip
"""Counters of one process, which only grow; nan for one that is not counted."""
WHOLE: Final = ("running", "waiting", "kv_used", "step_seconds", "timed_steps", "gpu_busy", "power_w", "joules")
"""Figures of the whole server, which every process reads alike; nan for one that is not known."""
ROW: Final = (
    "at_s", "requests_per_s", "refused_per_s", "prompt_tokens_per_s", "output_tokens_per_s", "running", "waiting",
    "kv_used", "prefix_hit_share", "accepted_share", "step_s", "gpu_busy", "power_w", "joules_per_good", "attained",
)  # fmt: skip
"""Columns of one row of the history that watchers get; ``None`` for what is not known.

- ``at_s``: time of the sample, in epoch seconds.
- ``kv_used``, ``gpu_busy``: shares, 0 to 1.
- ``step_s``: mean duration of a step.
- ``joules_per_good``: energy of all GPUs over the number of requests that met their targets.
- ``attained``: share of requests that met all targets, for each of the first :data:`MOST_CLASSES` classes.
"""

_SHARE_SLOTS: Final = round(SHARE_SPAN_S / EVERY_S)
_SHOWN: Final = round(SPAN_S / EVERY_S)
SLOTS: Final = _SHOWN + _SHARE_SLOTS + 1
"""Samples of one process that are kept."""
_AT: Final = {name: 1 + place for place, name in enumerate((*COUNTERS, *WHOLE))}
_CLASSES: Final = 1 + len(_AT)
_FIRST_WHOLE: Final = 1 + len(COUNTERS)


def width(classes: int) -> int:
    """Return the columns of a sample: its time, the named figures, and two counters for each class."""
    return _CLASSES + 2 * min(classes, MOST_CLASSES)


def record(
    ring: FloatArray, figures: Mapping[str, float], by_class: Sequence[tuple[float, float]], at_s: float
) -> None:
    """Write one sample into its place.

    Args:
        ring: Samples of this process, ``[SLOTS, width]``.
        figures: Figures named in :data:`COUNTERS` and :data:`WHOLE`; one that is left out is not known.
        by_class: Requests that met all targets, and requests that had targets, of each class.
        at_s: Time of the sample by the host's monotonic clock, in seconds.
    """
    row = np.full(ring.shape[1], np.nan)
    for name, value in figures.items():
        row[_AT[name]] = value
    of_classes = np.array(by_class[:MOST_CLASSES], np.float64).ravel()
    row[_CLASSES : _CLASSES + of_classes.size] = of_classes
    ring[_slot(at_s) % SLOTS, 1:] = row[1:]
    ring[_slot(at_s) % SLOTS, 0] = at_s  # the time comes last: a reader that sees it finds the figures


def rows(rings: Iterable[FloatArray], epoch_ahead_s: float, now_s: float, most: int = _SHOWN) -> list[list[Any]]:
    """Return the latest samples as rows of :data:`ROW`, the oldest first.

    Args:
        rings: Samples of each process.
        epoch_ahead_s: Seconds by which epoch time is ahead of the host's monotonic clock.
        now_s: Present time by the monotonic clock, in seconds.
        most: Most rows to return.
    """
    samples = _together(rings, now_s)
    if len(samples) < 2:
        return []
    before, now = samples[:-1], samples[1:]
    seconds = now[:, 0] - before[:, 0]
    long_before = samples[np.maximum(np.arange(1, len(samples)) - _SHARE_SLOTS, 0)]

    def grown(name: str, since: FloatArray = before) -> FloatArray:
        return now[:, _AT[name]] - since[:, _AT[name]]

    grown_by_class = now[:, _CLASSES:] - long_before[:, _CLASSES:]
    good, had = grown_by_class[:, 0::2], grown_by_class[:, 1::2]
    columns = [
        now[:, 0] + epoch_ahead_s,
        *(grown(name) / seconds for name in ("requests", "refused", "prompt_tokens", "output_tokens")),
        *(now[:, _AT[name]] for name in ("running", "waiting", "kv_used")),
        _share(grown("prefix_hits", long_before), grown("prefix_queries", long_before)),
        _share(grown("accepted_tokens", long_before), grown("draft_tokens", long_before)),
        _share(grown("step_seconds"), grown("timed_steps")),
        *(now[:, _AT[name]] for name in ("gpu_busy", "power_w")),
        _share(grown("joules", long_before), np.nansum(good, axis=1)),
    ]
    attained = _share(good, had)
    return [
        [_brief(values[at], 3 if name == "at_s" else None) for name, values in zip(ROW, columns, strict=False)]
        + [[_brief(share) for share in attained[at]]]
        for at in range(max(len(now) - most, 0), len(now))
    ]


def _together(rings: Iterable[FloatArray], now_s: float) -> FloatArray:
    """Return the samples of all processes as the samples of one server, the oldest first, ``[samples, width]``."""
    first = _slot(now_s) - SLOTS + 1
    parts = [part for ring in rings if (part := _in_order(ring, first)) is not None]
    if not parts:
        return np.zeros((0, _CLASSES))
    stacked = np.stack(parts)
    found: FloatArray = stacked.max(axis=0, initial=-np.inf, where=~np.isnan(stacked))
    found[np.isneginf(found)] = np.nan
    counted = np.r_[1:_FIRST_WHOLE, _CLASSES : found.shape[1]]
    known = ~np.isnan(stacked[..., counted]).all(axis=0)
    found[:, counted] = np.where(known, np.nansum(stacked[..., counted], axis=0), np.nan)
    is_taken = ~np.isnan(found[:, 0])
    taken: FloatArray = found[is_taken]
    return taken


def _in_order(ring: FloatArray, first: int) -> FloatArray | None:
    """Return one process' samples from slot ``first`` on, ``[SLOTS, width]``; ``None`` if it has none.

    Where a sample is missing its counters stand as in the sample before, and its other figures are nan.
    """
    copied = ring.copy()
    slots = np.floor(copied[:, 0] / EVERY_S).astype(np.int64)
    is_known = (copied[:, 0] > 0.0) & (slots >= first) & (slots < first + SLOTS)
    if not is_known.any():
        return None
    part = np.full(copied.shape, np.nan)
    part[slots[is_known] - first] = copied[is_known]
    for columns in (slice(1, _FIRST_WHOLE), slice(_CLASSES, None)):
        oldest = int(slots[is_known].min()) - first
        part[:oldest, columns] = part[oldest, columns]
        part[:, columns] = np.fmax.accumulate(part[:, columns], axis=0)
    return part


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    found: FloatArray = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0.0)
    return found


def _slot(at_s: float) -> int:
    return math.floor(at_s / EVERY_S)


def _brief(value: float, decimals: int | None = None) -> float | int | None:
    """Return a number in few characters: with ``decimals``, else with three digits; ``None`` for nan."""
    if not math.isfinite(value):
        return None
    brief = float(f"{value:.3g}") if decimals is None else round(float(value), decimals)
    return int(brief) if brief == int(brief) else brief
