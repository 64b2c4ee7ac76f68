"""The policies that an engine follows, the planner that plans by them, and when planning begins again after a fault.

If planning raises an exception, the planner's rows may be wrong. So the planner is dropped and the engine schedules by
itself; some time later planning begins again with rows made from the engine's own requests. What was learned of
requests that ended is kept, unless planning fails again: then that may be at fault.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sloserve.core.clock import Clock
from sloserve.core.stated import StatedSLO
from sloserve.engine.planner import Planner
from sloserve.engine.policy_change import PolicyChanged
from sloserve.engine.policy_maker import PolicyMaker
from sloserve.engine.port import EngineRequest
from sloserve.engine.recording.plan_log import PlanLog
from sloserve.engine.shadow import Shadow
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import parse_policy, policy_text
from sloserve.scheduler.settings import PluginSettings

PLAN_AGAIN_S: Final = 1.0
"""Seconds without plans after an exception in planning.

The time doubles with each exception, so that one that comes back with the same requests costs little; a change of
policy starts from here.
"""
MOST_PLAN_AGAIN_S: Final = 60.0


class PoliciesInForce:
    """The policy and the shadow policy of an engine, with their planner.

    Args:
        maker: Makes the policies of the engine.
        settings: Settings with the policies to begin with.
        make_planner: Returns a planner for a policy, a shadow policy and the policy's text; ``None`` if the engine
            schedules by itself under them. It raises ConfigError for a shadow policy that cannot plan for the engine.
        live: Returns the requests that the engine has, in order of arrival.
        slo_of: SLOs of the requests, by id.
        clock: Clock of the engine.

    Attributes:
        policy: The policy to follow.
        shadow: The policy that is only scored; ``None`` for none.
        planner: The planner; ``None`` while the engine schedules by itself.
        change: The last change of the policy, for people who ask who made it; ``None`` since the start.

    Raises: ConfigError for policies that the engine cannot follow.
    """

    def __init__(
        self,
        maker: PolicyMaker,
        settings: PluginSettings,
        make_planner: Callable[[Policy, Shadow | None, str], Planner | None],
        live: Callable[[], Iterable[EngineRequest]],
        slo_of: Mapping[str, StatedSLO],
        clock: Clock,
    ) -> None:
        self._maker, self._make_planner = maker, make_planner
        self._live, self._slo_of, self._clock = live, slo_of, clock
        self._spec: tuple[str, Mapping[str, Any]] = (settings.policy, settings.policy_options)
        self.policy = maker.policy(*self._spec)
        self._text = policy_text(*self._spec)
        self.shadow, self._shadow_text = maker.shadow(settings.shadow_policy), settings.shadow_policy
        self.planner = make_planner(self.policy, self.shadow, self._text)
        self.change: PolicyChanged | None = None
        self._log: PlanLog | None = None
        self._dropped: Planner | None = None  # its policies have learned something
        self._again_s = 0.0
        self._pause_s = PLAN_AGAIN_S

    @property
    def texts(self) -> tuple[str, str | None]:
        """Texts of the policy and of the shadow policy."""
        return self._text, self._shadow_text

    def set(self, policy: str | None, shadow_policy: str | None, *, allow_files: bool) -> None:
        """Change the policy, the shadow policy or both between two steps.

        Args:
            policy: Text of the policy to follow; ``None`` leaves it as it is.
            shadow_policy: Text of the policy to score, likewise; an empty one turns shadow mode off. The scores of a
                new shadow policy begin at zero.
            allow_files: Whether an option may name a file.

        Raises: ConfigError, and both stay as they were.
        """
        if self.planner is None:
            self.policy, self.shadow = self._made_anew()
        used, shadow, spec, shadow_text = self.policy, self.shadow, self._spec, self._shadow_text
        if policy is not None:
            spec = parse_policy(policy)
            used = self._maker.policy(*spec, allow_files=allow_files)
        if shadow_policy is not None:
            shadow_text = shadow_policy or None
            shadow = self._maker.shadow(shadow_text, allow_files=allow_files)
        self.use(used, shadow, policy_text(*spec))
        self._spec, self._text, self._shadow_text = spec, policy_text(*spec), shadow_text
        self._pause_s = PLAN_AGAIN_S

    def use(self, policy: Policy, shadow: Shadow | None, text: str) -> None:
        """Follow these policies, of which ``text`` names the first, with a planner that has all live requests."""
        planner = self._make_planner(policy, shadow, text)
        if planner is not None:
            try:
                if self._dropped is not None:
                    planner.learn_from(self._dropped)
                if self._log is not None:
                    if self._dropped is not None:
                        self._log.learned(policy)
                    planner.record(self._log, text, self._clock.now_s())
                planner.take_over(self.planner, self._live(), self._slo_of, self._clock.now_s())
            except Exception:
                if self.planner is not None:
                    self.drop()  # the two share their rows
                raise
        self.policy, self.shadow, self.planner, self._dropped = policy, shadow, planner, None

    def drop(self) -> None:
        """Drop the planner after an exception in planning, until :meth:`begin_again` finds that the pause is over."""
        is_first = self._pause_s == PLAN_AGAIN_S
        self._dropped, self.planner = self.planner if is_first else None, None
        self._again_s = self._clock.monotonic_s() + self._pause_s
        self._pause_s = min(2.0 * self._pause_s, MOST_PLAN_AGAIN_S)

    def begin_again(self, monotonic_s: float) -> bool:
        """Plan again if the planner was dropped and the pause is over; return whether planning began again."""
        if self.planner is not None or not monotonic_s >= self._again_s > 0.0:
            return False
        self._again_s = 0.0
        self.use(*self._made_anew(), self._text)
        return True

    def _made_anew(self) -> tuple[Policy, Shadow | None]:
        """Return the policies for new rows, without knowledge of the rows that are no more."""
        return self._maker.policy(*self._spec), self._maker.shadow(self._shadow_text)

    def record(self, log: PlanLog) -> None:
        """Record all that the policy is given, and its next plans."""
        self._log = log
        if self.planner is not None:
            self.planner.record(log, self._text, self._clock.now_s())
