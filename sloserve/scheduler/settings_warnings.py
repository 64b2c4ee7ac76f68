"""Warnings of settings that are allowed and will not do what their writer may expect."""

from sloserve.scheduler.registry import GENERAL, make_policy
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.peers import TrustedProxies


def class_warnings(settings: PluginSettings) -> list[str]:
    """Return warnings of classes and targets that the policy does not read: it serves as if they did not exist."""
    needs = make_policy(settings.policy, settings.policy_options).reads
    unread = {c.name: [name for name in c.targets.stated if name not in needs] for c in settings.classes}
    if "class_rank" not in needs:
        idle = [c.name for c in settings.classes if len(unread[c.name]) == len(c.targets.stated)]
        if idle:
            return [
                f"policy {settings.policy} does not read the rank of a class, nor any target that it gives: "
                f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect on the order of service; "
                f"policy {GENERAL} reads both"
            ]
    return [
        f"policy {settings.policy} does not read {', '.join(names)} of class {name}"
        for name, names in unread.items()
        if names
    ]


def tenant_warnings(settings: PluginSettings) -> list[str]:
    """Return a warning if other machines may name any tenant, where it matters which tenant a request belongs to."""
    named = [name for name in ("tenant_shares", "tenants", "tenant_default") if getattr(settings, name)]
    outside = TrustedProxies(settings.trusted_proxies).beyond_this_machine
    if settings.keys is not None or not (named and settings.tenant_headers and outside):
        return []
    return [
        f"{named[0]}: every client at {', '.join(outside)} (trusted_proxies) may name any tenant in a header; "
        "let only a proxy that sets the header itself stand there, or give tenants keys with --keys FILE"
    ]
