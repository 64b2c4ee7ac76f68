"""Values that a shell completes."""


def policies(incomplete: str) -> list[str]:
    """Names of installed policies."""
    from sloserve.scheduler.registry import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Names of shipped presets."""
    from sloserve.scheduler import config

    return [name for name in config.presets() if name.startswith(incomplete)]
