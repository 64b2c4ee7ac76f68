"""Names of planners that a fleet's file may give: ``qlm``, or a rule in the place of its search."""

import math
from dataclasses import dataclass
from typing import Final

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.files.model import unknown
from sloserve.scheduler.virtual_queues.contract import GroupSums

QLM: Final = "qlm"
ON_DEMAND, COLLATE, EDF, SA = "on-demand", "collate", "edf", "sa"
RULES: Final = (ON_DEMAND, COLLATE, EDF, SA)
_MAX_WAIT: Final = "max_wait_s"
_SPARE_S: Final = 5.0
"""Seconds by which EDF switches to a model before its first request would be late: the output's time is a guess."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A simple rule in place of the planner's search.

    Args:
        name: One of RULES.
        max_wait_s: Bound of the wait in seconds under ``collate``.
    """

    name: str
    max_wait_s: float = math.inf

    @classmethod
    def parse(cls, text: str, max_wait_s: float) -> "Rule | None":
        """Return the rule of a text such as ``collate:max_wait_s=20``; ``None`` for ``qlm``.

        If the text gives no bound, ``max_wait_s`` is used.

        Raises: ConfigError that says what is wrong.
        """
        name, _, option = text.partition(":")
        if name not in (QLM, *RULES):
            raise ConfigError(f"{name!r} {unknown(name, (QLM, *RULES))}")
        key, _, value = option.partition("=")
        if option and (name, key) != (COLLATE, _MAX_WAIT):
            raise ConfigError(f"option {key!r} is unknown; only {COLLATE} has one, {_MAX_WAIT}")
        try:
            bound_s = numbers.number(value) if option else max_wait_s
        except ValueError:
            bound_s = -1.0
        if not 0.0 <= bound_s < math.inf:
            raise ConfigError(f"{_MAX_WAIT}: {value!r} is not a number of seconds >= 0")
        return None if name == QLM else cls(name, bound_s)

    def key(self, group: GroupSums) -> float:
        """Return the sort key of a group, least for the group to serve first."""
        return group.first_due_s if self.name == EDF else group.first_arrival_s

    def may_take(
        self, head: GroupSums, theirs: GroupSums | None, now_s: float, served_s: float, *, is_active: bool
    ) -> bool:
        """Return whether the model of ``head`` may take an instance that is busy.

        Args:
            head: The first waiting group of the model.
            theirs: The first group that waits for the instance's model.
            now_s: Time of the decision, in seconds.
            served_s: Seconds after which the output of ``head`` would have ended there.
            is_active: Whether its model has an instance already.
        """
        if self.name in (ON_DEMAND, SA):
            return not is_active
        if self.name == COLLATE:
            return now_s - head.first_arrival_s >= self.max_wait_s
        if theirs is not None and theirs.first_due_s <= head.first_due_s:
            return False
        return now_s + served_s + _SPARE_S >= head.first_due_s


def preempts_lines(solver: str) -> bool:
    """Return whether running lines give way to the first group of a queue, by the origin of the plan.

    Under the simpler rules no line does: no search for the least lateness makes their order.
    """
    return solver not in RULES


def expects_streams(text: str) -> bool:
    """Return whether the planner of this name plans for streams that have not come yet."""
    return text.partition(":")[0] == QLM
