"""SLO assignments by name, so that ``--slo reading`` gives any workload or trace the expectations of Andes's users."""

from sloserve.core.qoe import DEFAULT_TTFT_S
from sloserve.core.slo import SLOClass, Targets
from sloserve.core.speeds import READING, SPEAKING, DigestSpeeds
from sloserve.sim.slo_assignment import DEFAULT_ASSIGNMENT, ClassRule, SLOAssignment
from sloserve.sim.slo_file import read_slo_file


def digest_assignment(name: str, speeds: DigestSpeeds) -> SLOAssignment:
    """One class ``name`` of users who digest at ``speeds`` and expect the first token in a second (Andes, Sec. 6.1)."""
    rule = ClassRule(SLOClass(name, 0, Targets(ttft_s=DEFAULT_TTFT_S)), speeds=speeds)
    return SLOAssignment(f"built-in SLOs {name!r}", (rule,), default=name)


NAMED_SLOS = {
    "default": DEFAULT_ASSIGNMENT,
    "reading": digest_assignment("reading", READING),
    "voice": digest_assignment("voice", SPEAKING),
}
"""default: of a workload that comes with no SLOs. reading, voice: people's reading or speaking speeds, TTFT 1 s."""


def find_slos(name_or_path: str) -> SLOAssignment:
    """The assignment of that name, or else in the SLO file at that path.

    Raises: ConfigError for a file that cannot be read, or a key or value in it that is not allowed.
    """
    return NAMED_SLOS.get(name_or_path) or read_slo_file(name_or_path)
