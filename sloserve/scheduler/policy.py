"""The contract between engine and policy: a policy turns a snapshot of the engine into a plan.

Purity: what a policy plans follows from the events it was given, the snapshots it saw and its seed. It reads no clock,
does no I/O, uses no global random state. The same object runs in live vLLM, in the virtual-time simulator and in shadow
mode.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows
from sloserve.lso.lengths import Lengths
from sloserve.lso.plan import NO_SLOTS, EngineFacts, Plan, PlanError, Snapshot, check_plan
from sloserve.lso.step_budget import StepBudget

__all__ = ["NO_SLOTS", "EngineFacts", "Plan", "PlanError", "Policy", "PredictingPolicy", "Snapshot", "check_plan"]
"""Names with which a policy is written, in one import."""


class Policy(ABC):
    """Decides which requests are served next, and which are preempted or paused.

    Subclasses are registered under the entry point group ``sloserve.policies``; ``Settings`` is a dataclass of their
    options.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Columns of :class:`~sloserve.core.rows.Rows` that this policy reads; with none its plan is IDENTITY.
    """

    full_attention_only: ClassVar[bool] = False
    """Whether it counts a request's KV blocks as tokens / block size: elsewhere it makes no plans."""

    wants_progress: ClassVar[bool] = False
    """Whether :meth:`progressed` is to be called; costs one call a step."""

    learned: ClassVar[tuple[str, ...]] = ()
    """Attributes that hold what it learned of requests that ended, and nothing of a row: they outlive the rows."""

    plans_on_events: bool = False
    """Whether its last plan is kept, for :data:`~sloserve.engine.held_plan.MAX_UNEVENTFUL_S` at most, while all that
    run decode and no request comes, ends, is admitted or preempted."""

    solver_cells: int = 0
    """Cells of tables that the last plan filled; virtual time charges them beside the number of requests."""

    @dataclass(frozen=True)
    class Settings:
        """Options of the policy, as given in configuration; unknown names are errors. Every policy extends it."""

        step_budget: bool = False
        """limit the prompt tokens of each step so that running requests keep their targets, see docs/step-budget.md"""

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        self.settings: Any = settings if settings is not None else self.Settings()
        self.seed = seed

    @property
    def gives_up(self) -> bool:
        """Whether its plans serve waiting requests that can be in time before the ones that have missed a deadline."""
        return False

    @property
    def reads(self) -> frozenset[str]:
        """All columns that must be kept: the columns that its plans and its step budget read."""
        return self.needs | (StepBudget.NEEDS if self.settings.step_budget else frozenset())

    @property
    def drafts(self) -> str:
        """How many drafts decodes verify, one of :data:`~sloserve.lso.draft_lengths.LENGTH_OF_DRAFTS`."""
        return "all"

    @property
    def limits_steps(self) -> bool:
        """Return whether limits on the tokens of a step are what it is for: without chunked prefill it is refused."""
        return False

    @property
    def lengths(self) -> Lengths | None:
        """What the policy knows of the lengths of outputs; ``None`` for a policy that does not need them."""
        return None

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:  # noqa: B027 - an optional hook
        """Take note of a request that was enqueued; its row is complete."""

    def progressed(self, rows: Rows, slots: IntArray, tokens: IntArray, now_s: float) -> None:  # noqa: B027
        """Take note that the requests in ``slots`` got ``tokens`` new output tokens each, both ``[n]``."""

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:  # noqa: B027
        """Take note of a request that ended, in whatever way; its row is freed after this call."""

    def learn_from(self, before: "Policy") -> None:
        """Continue with what ``before`` learned, if it is the same policy with the same options; its rows are lost."""
        if type(before) is type(self) and before.settings == self.settings:
            for name in self.learned:
                setattr(self, name, getattr(before, name))

    def is_idle(self, waiting: int, running: int, engine: EngineFacts) -> bool:
        """Return whether the plan is IDENTITY with these numbers of requests, whatever their rows say.

        No snapshot is taken then.

        Args:
            waiting: Number of waiting requests.
            running: Number of running requests.
            engine: What the engine can do.
        """
        return False

    @abstractmethod
    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        """Return the plan for the next steps. The snapshot is read only and valid during the call. Ties end in ``seq``.

        The method may raise: the planner then uses the identity plan for this step, logs the error and counts it.
        """


class PredictingPolicy(Policy):
    """A policy that plans with predicted lengths of outputs, and learns them from the requests that end.

    Its ``Settings`` have ``length``, the name of the predictor, and ``length_error``, the relative error of an oracle.
    """

    learned: ClassVar[tuple[str, ...]] = ("_lengths",)

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._lengths = Lengths(self.settings.length, self.settings.length_error, seed=seed)

    @property
    def lengths(self) -> Lengths:
        return self._lengths

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self._lengths.observe(rows, slot)
