"""Experiments: the flags of ``sloserve simulate`` under a name, from the packages that register some.

``sloserve simulate --experiment NAME`` runs one; flags given beside it replace its own. An entry point of the group
``sloserve.experiments`` names a mapping of names to :class:`ExperimentRow`. A checkout registers the experiments of its
benchmarks; the wheel has none. Traces are named by file and looked for in the folder that the environment variable
SLOSERVE_DATA names.
"""

from dataclasses import dataclass, field
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.nearest import did_you_mean
from sloserve.core.registrations import registered
from sloserve.sim.workloads.readers.found import find_trace

GROUP = "sloserve.experiments"


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One experiment.

    Args:
        question: Question that the experiment answers.
        flags: Flags of ``sloserve simulate``, with underscores.
        trace: Name of a trace's file, or ``None`` where the flags name a generator.
    """

    question: str
    flags: dict[str, Any] = field(default_factory=dict)
    trace: str | None = None


def experiments() -> dict[str, ExperimentRow]:
    """Return the experiments of all installed packages by name.

    Raises: ConfigError when the experiments of a package cannot be loaded.
    """
    found: dict[str, ExperimentRow] = {}
    for rows in registered(GROUP).values():
        try:
            found |= rows.load()
        except Exception as error:
            raise ConfigError(f"experiments of {rows.name!r} ({rows.value}) cannot be loaded: {error}") from error
    return found


def experiment_flags(name: str) -> dict[str, Any]:
    """Return the flags of the experiment ``name``, with its trace as a path.

    Raises: ConfigError for an unknown name, or a trace that is not found.
    """
    known = experiments()
    if name not in known:
        if not known:
            raise ConfigError(
                f"unknown experiment {name!r}; known: none, since only a checkout of sloserve brings some"
            )
        hint = did_you_mean(name, known)
        raise ConfigError(f"unknown experiment {name!r}{hint or ';'} `sloserve workloads --experiments` lists all")
    row = known[name]
    if row.trace is None:
        return dict(row.flags)
    return {**row.flags, "trace": find_trace(row.trace)}
