"""The plugin's settings, as they travel in ``--additional-config '{"sloserve": {...}}'``."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.slo import DEFAULT_CLASSES, ClassTable, class_table
from sloserve.scheduler.registry import parse_policy

KEY = "sloserve"
DEFAULT_CLASS = "default_class"


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """Settings of one engine's scheduler.

    policy, policy_options: which policy plans, see :mod:`sloserve.scheduler.registry`. seed: of the policy.
    plan_share: planning may cost at most this share of the time the engine spends stepping; 1 plans at every step.
    aged_share: at most this share of admissions goes to the oldest requests past their class's age; 0 turns ageing off.
    classes: the service classes, in the form of :func:`~sloserve.core.slo.class_table`; ``default_class`` beside it
    names the class of requests that name none.
    """

    policy: str = "fcfs"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    plan_share: float = 0.05
    aged_share: float = 0.1
    classes: ClassTable = DEFAULT_CLASSES

    def __post_init__(self) -> None:
        for name, low in (("plan_share", 1e-6), ("aged_share", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= 1.0:
                raise ConfigError(f"{KEY}.{name}: {value!r} is not a number within {low:g}..1")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"{KEY}.seed: {self.seed!r} is not a whole number from 0")


def plugin_settings(additional_config: Mapping[str, Any] | None) -> PluginSettings:
    """Reads the ``sloserve`` section of vLLM's additional config; without one the policy is fcfs.

    Raises: ConfigError for an unknown key or a value out of range.
    """
    section = (additional_config or {}).get(KEY, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{KEY}: {section!r} is not a mapping of settings")
    known = [*(f.name for f in fields(PluginSettings)), DEFAULT_CLASS]
    for key in section:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{KEY}.{key} is not a setting; settings: {', '.join(known)}{hint}")
    values = dict(section)
    options = values.get("policy_options", {})
    if not isinstance(options, Mapping):
        raise ConfigError(f"{KEY}.policy_options: {options!r} is not a mapping of option to value")
    if not isinstance(values.get("policy", ""), str):
        raise ConfigError(f"{KEY}.policy: {values['policy']!r} is not the name of a policy")
    if "policy" in values:
        values["policy"], inline = parse_policy(values["policy"])
        values["policy_options"] = {**inline, **options}
    default = values.pop(DEFAULT_CLASS, None)
    if "classes" in values:
        if not isinstance(values["classes"], Mapping):
            raise ConfigError(f"{KEY}.classes: {values['classes']!r} is not a mapping of class name to settings")
        values["classes"] = class_table(values["classes"], default)
    elif default is not None:
        raise ConfigError(f"{KEY}.{DEFAULT_CLASS}: give {KEY}.classes as well")
    return PluginSettings(**values)
