"""SLO assignments by name, so that ``--slo reading`` gives any workload or trace the expectations of Andes's users."""

import math
from pathlib import Path

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.qoe import DEFAULT_TTFT_S
from sloserve.core.slo import SLOClass, Targets
from sloserve.core.speeds import READING, SPEAKING, DigestSpeeds
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT, ClassRule, ScaledDeadline, SLOAssignment
from sloserve.sim.workloads.slo_file import read_slo_file


def digest_assignment(name: str, speeds: DigestSpeeds) -> SLOAssignment:
    """Return one class ``name`` of users who digest at ``speeds`` and expect the first token in a second.

    Source: Andes, Sec. 6.1.
    """
    rule = ClassRule(SLOClass(name, 0, Targets(ttft_s=DEFAULT_TTFT_S)), speeds=speeds)
    return SLOAssignment(f"built-in SLOs {name!r}", (rule,), default=name)


NAMED_SLOS = {
    "default": DEFAULT_ASSIGNMENT,
    "reading": digest_assignment("reading", READING),
    "voice": digest_assignment("voice", SPEAKING),
}
"""The named SLO assignments.

``default`` is the assignment of a workload without SLOs; ``reading`` and ``voice`` have people's reading or speaking
speeds and a TTFT of 1 s.
"""


SCALED = "scaled"
"""The name of EconoServe's deadlines, which are in proportion to the output: ``scaled:prompt_ms=50:token_ms=24``."""


def find_slos(name_or_path: str) -> SLOAssignment:
    """Return the assignment with this name, or else the assignment in the SLO file at this path.

    Raises: ConfigError for a file that cannot be read, or a key or value in it that is not allowed.
    """
    name, colon, options = name_or_path.partition(":")
    if colon and name == SCALED:
        return _scaled(name_or_path, options)
    if name_or_path in NAMED_SLOS:
        return NAMED_SLOS[name_or_path]
    if not Path(name_or_path).exists():
        known = ", ".join((*NAMED_SLOS, SCALED))
        raise ConfigError(f"--slo: {name_or_path!r} is not one of {known}, and there is no file of this name")
    return read_slo_file(name_or_path)


def _scaled(text: str, options: str) -> SLOAssignment:
    """Return the assignment with the deadline scale * (prompt_ms + token_ms * output tokens) after arrival.

    Both latencies are measured without load; the scale is 2 if not given.
    """
    found = {"scale": 2.0}
    for pair in options.split(":"):
        key, _, value = pair.partition("=")
        try:
            found[key] = numbers.number(value)
        except ValueError:
            found[key] = math.nan
        if key not in ("scale", "prompt_ms", "token_ms") or not 0.0 <= found[key] < math.inf:
            raise ConfigError(
                f"--slo {text}: {pair!r} is not scale, prompt_ms or token_ms with a number of 0 or more behind '='"
            )
    if missing := [key for key in ("prompt_ms", "token_ms") if key not in found]:
        raise ConfigError(f"--slo {text}: give {' and '.join(missing)} too, measured without load")
    deadline = ScaledDeadline(found["scale"], found["prompt_ms"] / 1e3, found["token_ms"] / 1e3)
    rule = ClassRule(SLOClass(SCALED, 0, Targets()), deadline=deadline)
    return SLOAssignment(f"built-in SLOs {text!r}", (rule,), default=SCALED)
