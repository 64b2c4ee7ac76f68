"""Makes the policies of one engine, as far as its flags allow them."""

import logging
from collections.abc import Mapping
from typing import Any

from sloserve.engine.shadow import Shadow
from sloserve.estimator.planning_cost import PlanningCost, PlanningCosts
from sloserve.scheduler import engine_flags
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.scheduler.settings import PluginSettings

logger = logging.getLogger(__name__)


class PolicyMaker:
    """Makes policies and shadow policies for one engine.

    Args:
        settings: Settings of the engine.
        scheduler_config: The engine's flags: its own order (``policy``), and whether prompts may be computed over
            several steps (``enable_chunked_prefill``).
        costs: Costs of planning in virtual time; ``None`` to measure it.
    """

    def __init__(self, settings: PluginSettings, scheduler_config: Any, costs: PlanningCosts | None) -> None:
        self._seed, self._plan_share = settings.seed, settings.plan_share
        self._has_shares = settings.tenant_shares is not None
        self._config, self._costs = scheduler_config, costs

    def policy(self, name: str, options: Mapping[str, Any], *, allow_files: bool = True) -> Policy:
        """Return a new policy.

        Args:
            name: Name of the policy.
            options: Options of the policy.
            allow_files: Whether an option may name a file.

        Raises: ConfigError for a policy that the engine's flags do not allow.
        """
        policy = make_policy(name, options, seed=self._seed, allow_files=allow_files)
        engine_flags.check_order(policy, name, self._config.policy, shares=self._has_shares)
        self._check_chunks(policy, name)
        return policy

    def shadow(self, text: str | None, *, allow_files: bool = True) -> Shadow | None:
        """Return a new shadow policy; ``None`` for no text. Raises: ConfigError."""
        if text is None:
            return None
        name, options = parse_policy(text)
        policy = make_policy(name, options, seed=self._seed, allow_files=allow_files)
        self._check_chunks(policy, name)
        return Shadow(policy, self._plan_share, self.cost_of(text))

    def cost_of(self, policy: str) -> PlanningCost | None:
        """Return the cost of planning under this policy; ``None`` to measure it."""
        return None if self._costs is None else self._costs.of(policy)

    def _check_chunks(self, policy: Policy, name: str) -> None:
        """Raise ConfigError for a policy that needs chunked prefill where it is off; log a step budget that rests."""
        chunked_prefill = self._config.enable_chunked_prefill
        engine_flags.check_chunks(policy, name, chunked_prefill)
        if policy.settings.step_budget and not chunked_prefill:
            logger.warning("sloserve derives no step budget for policy %s: chunked prefill is off", name)
