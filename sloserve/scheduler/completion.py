"""Values that a shell completes."""


def policies(incomplete: str) -> list[str]:
    """Return the names of the installed policies that begin with ``incomplete``."""
    from sloserve.scheduler.registry import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]


def presets(incomplete: str) -> list[str]:
    """Return the names of the shipped presets that begin with ``incomplete``."""
    from sloserve.scheduler import config

    return [name for name in config.presets() if name.startswith(incomplete)]
