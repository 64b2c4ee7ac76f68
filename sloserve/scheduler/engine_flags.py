"""What a policy needs of vLLM's own flags: checked before a model is loaded, and again when a policy is changed."""

from typing import Final

from sloserve.core.errors import ConfigError
from sloserve.scheduler.policy import Policy

OWN_ORDER: Final = "fcfs"
"""The value of ``--scheduling-policy`` with which vLLM leaves the order of its queues to us."""


def check_order(policy: Policy, name: str, scheduling_policy: str, *, shares: bool) -> None:
    """Raise ConfigError for a policy that orders the queues where vLLM orders them itself.

    Args:
        policy: The policy that is to plan; a shadow policy may have any order.
        name: The name of the policy, for the message.
        scheduling_policy: Value of vLLM's ``--scheduling-policy``.
        shares: Whether tenants have shares of the engine, which order the queues under every policy.
    """
    if (policy.reads or shares) and scheduling_policy != OWN_ORDER:
        if not policy.reads:
            name += " with tenant_shares"
        raise ConfigError(
            f"--scheduling-policy {scheduling_policy} orders vLLM's queues itself, "
            f"which policy {name} cannot; leave it at {OWN_ORDER} and choose --policy priority"
        )


def check_chunks(policy: Policy, name: str, chunked_prefill: bool) -> None:
    """Raise ConfigError for a policy that exists to limit steps where each prompt is computed in one step.

    Args:
        policy: a policy or a shadow policy.
        name: The name of the policy, for the message.
        chunked_prefill: Value of vLLM's ``--enable-chunked-prefill``.
    """
    if policy.limits_steps and not chunked_prefill:
        raise ConfigError(
            f"policy {name} limits the tokens of each step, and a prompt longer than that would never be admitted "
            "where chunked prefill is off; remove --no-enable-chunked-prefill or choose another policy"
        )
