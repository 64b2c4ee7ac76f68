"""What a recording says of the requests that it holds, and the trace that they make."""

import csv
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import yaml

from sloserve.core.errors import ConfigError
from sloserve.core.finished import Latency, targets_met
from sloserve.core.runlog import latency_of
from sloserve.core.slo import Targets
from sloserve.engine.recording.events import ABORTED, HASH_BYTES, Arrived, RequestEnded
from sloserve.engine.recording.reading import Recording


def targets_of(request: Arrived) -> Targets:
    """Return the targets of a request."""
    return Targets(request.ttft_s, request.tpot_s, request.e2e_s, request.tds)


def latency(recording: Recording, number: int) -> Latency | None:
    """Return the latency of a request; ``None`` for one that has not ended or had no token."""
    request, end = recording.arrived[number], recording.ended.get(number)
    first_s = recording.first_token_s.get(number)
    if end is None or first_s is None:
        return None
    return latency_of(request.at_s, first_s, end.at_s, end.output_tokens)


def in_time(targets: Targets, measured: Latency | None) -> bool:
    """Return whether a request with targets met all of them."""
    return all(targets_met(targets, measured).values())


def class_names(recording: Recording) -> list[str]:
    """Return the names of the classes in the order of their numbers."""
    stated = recording.head.settings["classes"]
    return [name for name, one in stated.items() if one is not None]


def attainment(recording: Recording) -> dict[str, float]:
    """Return the share of requests by class that met all their targets, among ended requests with targets.

    Requests that were aborted are left out. Where it is not known whether a request was aborted or met a stop string,
    it counts by its times.
    """
    names, good = class_names(recording), dict[str, list[bool]]()
    for number, request in recording.arrived.items():
        targets = targets_of(request)
        end = recording.ended.get(number)
        if not targets or end is None or end.reason == ABORTED:
            continue
        good.setdefault(names[request.class_id], []).append(in_time(targets, latency(recording, number)))
    return {name: round(float(np.mean(met)), 4) for name, met in sorted(good.items())}


def summary(recording: Recording) -> dict[str, Any]:
    """Return what a recording holds, in plain values."""
    steps, requests = recording.steps, recording.arrived
    latencies = [found for number in requests if (found := latency(recording, number)) is not None]
    ttft_s = [one.ttft_s for one in latencies]
    times = [one.at_s for one in requests.values()] + [one.end_s for one in steps]
    return {
        "policy": recording.head.policy,
        "seconds": round(max(times) - min(times), 1) if times else 0.0,
        "requests": len(requests),
        "ended": len(recording.ended),
        "ends": dict(Counter(one.reason for one in recording.ended.values() if one.reason).most_common()),
        "output_tokens": sum(one.output_tokens for one in recording.ended.values()),
        "steps": len(steps),
        "step_ms": round(1e3 * float(np.median([one.end_s - one.start_s for one in steps])), 2) if steps else None,
        "ttft_p50_p99_s": [round(float(q), 3) for q in np.quantile(ttft_s, (0.5, 0.99))] if ttft_s else None,
        "in_time": attainment(recording),
        "preemptions": len(recording.preempted),
        "policy_changes": len(recording.policies),
        "refused": dict(Counter(one.reason for one in recording.refused).most_common()),
        "lost_events": recording.lost,
    }


def traced(recording: Recording) -> Iterator[tuple[Arrived, RequestEnded]]:
    """Yield the requests that a trace of the recording has: requests that ended with an output, by arrival.

    Raises: ConfigError if there are none.
    """
    found = [
        (request, end)
        for number, request in recording.arrived.items()
        if (end := recording.ended.get(number)) is not None and end.output_tokens >= 1
    ]
    if not found:
        raise ConfigError("the recording has no request that ended with an output; there is nothing to write")
    yield from sorted(found, key=lambda one: one[0].at_s)


def write_trace(recording: Recording, folder: Path) -> tuple[int, int]:
    """Write ``trace.csv`` and ``slo.yaml``; return how many requests were written, and how many were left out.

    Each combination of class and targets that requests stated is a class of its own in ``slo.yaml``, since a trace has
    targets by class alone.

    Raises: ConfigError if a file cannot be written, or no request has ended.
    """
    rows, labels = [], _Labels(recording)
    ids: dict[bytes, int] = {}
    began_s = min((one.at_s for one in recording.arrived.values()), default=0.0)
    for request, end in traced(recording):
        blocks = " ".join(str(ids.setdefault(one, len(ids))) for one in stretch_hashes(request.prompt))
        tenant = f"{request.tenant:016x}" if request.tenant else ""
        label = labels.of(request)
        rows.append((f"{request.at_s - began_s:.6f}", request.prompt_tokens, end.output_tokens, label, blocks, tenant))
    with new_file(folder, "trace.csv") as file:
        out = csv.writer(file)
        out.writerow(("arrival_s", "prompt_tokens", "output_tokens", "task", "hash_ids", "tenant"))
        out.writerows(rows)
    with new_file(folder, "slo.yaml") as file:
        yaml.safe_dump(labels.slo_file(), file, sort_keys=False)
    return len(rows), len(recording.arrived) - len(rows)


@contextmanager
def new_file(folder: Path, name: str) -> Iterator[TextIO]:
    """Open a file that does not exist yet, to be written. Raises: ConfigError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("x", newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}; give another --out") from error


def stretch_hashes(contents: bytes) -> list[bytes]:
    """Return the hash of each whole stretch of a prompt, or of a prompt and its output, as a recording has them."""
    return [contents[at : at + HASH_BYTES] for at in range(0, len(contents), HASH_BYTES)]


class _Labels:
    """Classes of an exported trace: one for each class and targets that its requests have."""

    def __init__(self, recording: Recording) -> None:
        self._names, self._stated = class_names(recording), recording.head.settings["classes"]
        self._default = recording.head.settings["default_class"]
        self._of: dict[tuple[int, Targets], str] = {}

    def of(self, request: Arrived) -> str:
        """Return the label of a request."""
        key = request.class_id, targets_of(request)
        if key not in self._of:
            name = self._names[request.class_id]
            same = sum(class_id == request.class_id for class_id, _ in self._of)
            self._of[key] = name if not same else f"{name}-{same + 1}"
        return self._of[key]

    def slo_file(self) -> dict[str, Any]:
        """Return the file of SLOs."""
        classes = {}
        for (class_id, targets), label in self._of.items():
            stated = self._stated[self._names[class_id]]
            values = {"rank": stated["rank"], "aged_after_s": stated["aged_after_s"], "tds": targets.tds}
            times = {"ttft_ms": targets.ttft_s, "tpot_ms": targets.tpot_s, "e2e_ms": targets.e2e_s}
            values |= {name: None if time_s is None else round(time_s * 1e3, 3) for name, time_s in times.items()}
            classes[label] = {name: value for name, value in values.items() if value is not None}
        default = self._default if self._default in classes else next(iter(classes))
        return {"classes": classes, "by_task": {label: label for label in classes}, "default": default}
