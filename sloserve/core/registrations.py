"""What installed distributions register with sloserve as entry points, our own among them."""

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

_OURS = "sloserve."
"""How the groups in which sloserve looks begin."""


@functools.cache
def _installed() -> Mapping[str, Mapping[str, EntryPoint]]:
    """Return the entry points by group and name, found once: finding them reads a file of every distribution."""
    found = entry_points()
    ours = (group for group in found.groups if group.startswith(_OURS))
    return {group: {one.name: one for one in found.select(group=group)} for group in ours}


def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of ``group`` by name, as they were installed when any group was first looked up."""
    return dict(_installed().get(group, {}))
