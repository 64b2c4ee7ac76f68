"""Raw measurements of an engine: a file that grows by a line a scenario, so that an interrupted run can be continued.

The file has JSON lines. The first says what was measured: engine, limits, versions. Each further line is a start of the
engine, with its times, or one repetition of one scenario, with its steps. A line cut short by the interruption is
dropped.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.json_lines import lines_of
from sloserve.estimator.step_time.fit import MeasuredStep
from sloserve.estimator.step_time.latency import StepLoad


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step of a scenario.

    Args:
        kind: Purpose of the step, the same in each repetition ("decode", "wave 0 step 1").
    """

    kind: str
    load: StepLoad
    duration_s: float


@dataclass(slots=True)
class Measurements:
    """The measurements that a file holds.

    Args:
        path: The file.
        subject: The first line: what was measured.
        starts: Figures that were measured at each start of the engine, by name.
    """

    path: Path
    subject: dict[str, Any]
    starts: list[dict[str, float]] = field(default_factory=list)
    _steps: dict[tuple[str, int], list[TimedStep]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, subject: Mapping[str, Any]) -> "Measurements":
        """Open the file at ``path`` if it is about ``subject``; create it if it does not exist.

        Raises: ConfigError when the file is about something else, or is not a file of measurements.
        """
        if not path.exists():
            made = cls(path, dict(subject))
            path.parent.mkdir(parents=True, exist_ok=True)
            made._append({"subject": made.subject})
            return made
        found = cls.read(path)
        different = [key for key in {**found.subject, **subject} if found.subject.get(key) != subject.get(key)]
        if different:
            details = ", ".join(f"{k} {found.subject.get(k)!r} there, {subject.get(k)!r} now" for k in different)
            raise ConfigError(f"{path} holds measurements of something else ({details}); move it away, or name another")
        return found

    @classmethod
    def read(cls, path: Path) -> "Measurements":
        """Read the measurements in the file at ``path``.

        Raises: ConfigError when there is no such file, or it is not a file of measurements.
        """
        try:
            text = path.read_text(encoding="utf-8")
            lines = [json.loads(line) for line in lines_of(text[: text.rfind("\n") + 1])]  # the last may be cut off
            made = cls(path, dict(lines[0]["subject"]))
            for line in lines[1:]:
                if "start" in line:
                    made.starts.append(dict(line["start"]))
                else:
                    made._steps[line["scenario"], line["repetition"]] = [
                        TimedStep(kind, StepLoad(*load), duration_s) for kind, load, duration_s in line["steps"]
                    ]
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(
                f"{path}: is not a file of raw measurements ({error!r}); move it away, or name another"
            ) from error
        if not text.endswith("\n"):
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
        return made

    def has(self, scenario: str, repetition: int) -> bool:
        """Return whether this repetition of the scenario is in the file."""
        return (scenario, repetition) in self._steps

    def add(self, scenario: str, repetition: int, steps: list[TimedStep]) -> None:
        """Append one repetition of a scenario to the file."""
        self._steps[scenario, repetition] = steps
        rows = [[s.kind, _row(s.load), s.duration_s] for s in steps]
        self._append({"scenario": scenario, "repetition": repetition, "steps": rows})

    def add_start(self, figures: Mapping[str, float]) -> None:
        """Append what was measured when the engine started."""
        self.starts.append(dict(figures))
        self._append({"start": dict(figures)})

    def median(self, name: str) -> float | None:
        """Return the median of ``name`` over the starts that measured it; ``None`` if none did."""
        found = [start[name] for start in self.starts if name in start]
        return median(found) if found else None

    def steps(self) -> list[MeasuredStep]:
        """Return one step of each kind, with the median load and duration.

        The medians are over repetitions and over like steps of a scenario.
        """
        alike: dict[tuple[str, str], list[TimedStep]] = defaultdict(list)
        for (scenario, _), steps in self._steps.items():
            for step in steps:
                alike[scenario, step.kind].append(step)
        return [
            MeasuredStep(
                StepLoad(*(round(median(column)) for column in zip(*(_row(s.load) for s in found), strict=True))),
                median(s.duration_s for s in found),
            )
            for _, found in sorted(alike.items())
        ]

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _row(load: StepLoad) -> tuple[int, ...]:
    """Return the figures of a load in the order of its fields."""
    return tuple(figure or 0 for figure in astuple(load))
