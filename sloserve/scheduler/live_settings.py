"""Settings that may change while a server runs, and what a change may not touch.

Requests that an engine has keep the targets and the class that they came with; a change holds for later requests. Names
of the classes, and their order by rank, stay, because figures, pages and rows of requests name a class by its number.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sloserve.core.errors import ConfigError
from sloserve.core.files.model import dotted
from sloserve.core.slo import DEFAULT_CLASSES, ClassTable
from sloserve.scheduler.class_settings import CLASSES
from sloserve.scheduler.settings import PluginSettings

LIVE: Final = (
    "classes",
    "default_class",
    "service_tiers",
    "unknown_class",
    "objectives",
    "priority_headers",
    "unknown_headers",
    "tenants",
    "tenant_default",
    "tenant_headers",
    "trusted_proxies",
    "tenant_shares",
    "admission",
    "max_body_bytes",
    "waiting_comments_s",
)
"""Settings that may change."""
_MOST_SHOWN: Final = 20
"""Changes that :func:`in_words` names; the others are counted."""
_MOST_CHARS: Final = 80
_ABSENT: Final = object()

Key = tuple[str, ...]


def changes(before: PluginSettings, after: PluginSettings) -> dict[Key, tuple[Any, Any]]:
    """Return the settings that differ, with the values before and after; ``None`` stands for one that is absent."""
    return dict(_differing(before.as_config(), after.as_config(), ()))


def in_order(section: Mapping[str, Any], before: ClassTable) -> dict[str, Any]:
    """Return settings that users wrote with their classes in the order of ``before``.

    Classes of one rank have the order in which they are stated, after the built-in ones that are not stated. So a
    target that is stated of a class, or no longer stated, would change the order of the classes.
    """
    stated = section.get(CLASSES)
    if not (isinstance(stated, Mapping) and stated):
        return dict(section)
    ordered = {name: stated.get(name, {}) for name in before.names if name in stated or name in DEFAULT_CLASSES}
    return {**section, CLASSES: ordered | {name: entry for name, entry in stated.items() if name not in ordered}}


def check_live(before: PluginSettings, after: PluginSettings) -> None:
    """Raise ConfigError, which lists every change that needs a restart."""
    faults = []
    for key, (old, new) in changes(before, after).items():
        if key[0] not in LIVE:
            faults.append(
                f"{dotted(key)}: {_shown(old)} -> {_shown(new)} needs a restart{_WITHOUT_RESTART.get(key[0], '')}"
            )
    if before.classes.names != after.classes.names:
        faults.append(
            f"classes: the server has {', '.join(before.classes.names)}, and would have "
            f"{', '.join(after.classes.names)}: a restart adds, removes and renames classes, and changes their "
            "order by rank"
        )
    if (before.tenant_shares is None) != (after.tenant_shares is None):
        faults.append("tenant_shares: shares are turned on and off by a restart; weights and half_life_s can change")
    if faults:
        raise ConfigError("nothing was changed:\n" + "\n".join(faults))


def in_words(changed: Mapping[Key, tuple[Any, Any]]) -> str:
    """Return changes as one line for a log, whatever the names in them hold."""
    said = [
        f"{_shown(dotted(key))} {_shown(old)} -> {_shown(new)}"
        for key, (old, new) in list(changed.items())[:_MOST_SHOWN]
    ]
    if len(changed) > _MOST_SHOWN:
        said.append(f"{len(changed) - _MOST_SHOWN} more")
    return "; ".join(said) or "no setting differs"


_POLICY: Final = "; PUT /sloserve/policy changes it"
_WITHOUT_RESTART: Final = {"policy": _POLICY, "policy_options": _POLICY, "shadow_policy": _POLICY}


def _differing(before: Any, after: Any, key: Key) -> Iterator[tuple[Key, tuple[Any, Any]]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            yield from _differing(before.get(name, _ABSENT), after.get(name, _ABSENT), (*key, str(name)))
    elif before != after:
        yield key, tuple(None if value is _ABSENT else value for value in (before, after))  # type: ignore[misc]


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[: _MOST_CHARS + 1])
    return text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 1] + "…"
