"""The server's settings out of the places an operator writes them in, each value with its origin.

A flag beats the file of ``--slo-config``, which beats the preset of ``--preset``, and what none says has its default.
``--additional-config``, vLLM's own way in, may add to them; where it says otherwise than they do, that is an error,
because neither is meant to yield.

A preset is a file of settings that is shipped with the package: a policy, and service classes for it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import reading
from sloserve.core.files.marked_yaml import Node, load_yaml
from sloserve.core.files.marked_yaml import Path as Key
from sloserve.core.files.model import Problem, at_place, dotted
from sloserve.core.nearest import did_you_mean
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.scheduler.class_settings import CLASSES
from sloserve.scheduler.settings import (
    ADMIN_KEY,
    KEY,
    PluginSettings,
    file_problems,
    policy_problems,
    read_settings,
)
from sloserve.scheduler.settings_warnings import class_warnings, tenant_warnings
from sloserve.wire import optional_http3

FLAGS: dict[str, Key] = {
    "policy": ("policy",),
    "shadow_policy": ("shadow_policy",),
    "admission": ("admission", "mode"),
    "max_waiting": ("admission", "max_waiting"),
    "min_chance": ("admission", "min_chance"),
    "swapping": ("swapping",),
    "keys": ("keys",),
    "trusted_proxies": ("trusted_proxies",),
    "record": ("record",),
    "record_mib": ("record_mib",),
    **{flag: ("http3", field) for field, flag in optional_http3.FLAGS.items()},
}
"""Flags of ``sloserve serve`` to the settings they are."""

SOURCE = "SLOSERVE_SETTINGS_SOURCE"
"""Environment variable in which ``sloserve serve`` tells its API processes where settings come from."""

_PRESETS = resources.files("sloserve.scheduler") / "presets"

_SETTINGS_FILE = "settings"
"""What a file of settings is among :data:`~sloserve.core.files.kinds.KINDS`."""

ADDITIONAL = "--additional-config"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Given:
    """A value that a user wrote.

    Args:
        value: The value itself.
        source: The flag, or the file's name.
        root: The root of the file in which it stands, if it stands in one.
    """

    value: Any
    source: str
    root: Node | None = None

    def origin(self, key: Key) -> str:
        """Return where the setting ``key``, which this value is or belongs to, was written: flag, or file and line."""
        return self.source if self.root is None else self.root.nearest(key).place.rpartition(":")[0]

    def fault(self, problem: Problem) -> str:
        """Return one line that says what is wrong, and where."""
        if self.root is not None:
            return at_place(self.root, problem)
        at = dotted((KEY, *problem.path)) if self.source == ADDITIONAL else self.source
        return f"{at}: {problem.text}"

    def contradicted(self, key: Key, other: Key, value: Any) -> str:
        mine = f"{self.source} {self.value}" if self.root is None else self.fault(Problem(key, repr(self.value)))
        return f"{mine}, but {ADDITIONAL} has {dotted((KEY, *other))} {value!r}; give one"


Sources = Mapping[Key, Given]
"""What was written, by setting; no setting stands below another."""


def presets() -> dict[str, str]:
    """Return the shipped presets: for each name a line that says what it is for."""
    files = {p.name.removesuffix(".yaml"): p for p in _PRESETS.iterdir() if p.name.endswith(".yaml")}
    return {
        name: files[name].read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for name in sorted(files)
    }


def _preset(name: str) -> Sources:
    known = presets()
    if name not in known:
        raise ConfigError(f"--preset: {name!r} is not one of {', '.join(known)}{did_you_mean(name, known)}")
    with resources.as_file(_PRESETS / f"{name}.yaml") as file:
        return {key: Given(value, f"preset {name}") for key, value in _leaves(load_yaml(file).plain())}


def read_sources(slo_config: Path | None, flags: Mapping[str, Any], preset: str | None = None) -> Sources:
    """Return what preset, file and flags set.

    What the file states of a class is laid over the preset's class, as settings are over the built-in class.

    Args:
        slo_config: Path of the file of settings, if there is one.
        flags: Values by the names of :data:`FLAGS`; ``None`` for a flag that was not given.
        preset: Name of the preset, if there is one.

    Raises: ConfigError for an unknown preset, a file that cannot be read, or a file without a mapping.
    """
    sources: dict[Key, Given] = {} if preset is None else dict(_preset(preset))
    if slo_config is not None:
        with reading(_SETTINGS_FILE, slo_config):
            root = load_yaml(slo_config)
            if not isinstance(root.value, dict):
                raise root.not_allowed(f"a mapping of settings: {', '.join(PluginSettings.model_fields)}")
        written = {key: Given(value, str(slo_config), root) for key, value in _leaves(root.plain())}
        sources = _laid_over(written, sources)
    for name, value in flags.items():
        if value is not None:
            key = FLAGS[name]
            # The options of a policy in the file do not belong to another policy.
            displaced = [key, ("policy_options",)] if name == "policy" else [key]
            sources = {k: given for k, given in sources.items() if not any(_overlap(k, d) for d in displaced)}
            sources[key] = Given(value, f"--{name.replace('_', '-')}")
    return sources


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in effect, and where each was written.

    Args:
        settings: The settings.
        section: What to hand to vLLM, with defaults left out.
        sources: The values that users wrote, by setting.
    """

    settings: PluginSettings
    section: Mapping[str, Any]
    sources: Sources

    def origin(self, *keys: Key) -> str:
        """Return where the settings at or below ``keys`` were written."""
        found = [given.origin(key) for key in keys for k, given in self.sources.items() if _overlap(k, key)]
        return ", ".join(dict.fromkeys(found)) or DEFAULT

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and origin of every setting, one row for each entry of a mapping."""
        config = self.settings.as_config()
        options = config.pop("policy_options")
        config["policy"] = ":".join([config["policy"], *(f"{name}={_text(x)}" for name, x in options.items())])
        origin = self.origin(("policy",), *([("policy_options",)] if options else []))
        rows = [("policy", config.pop("policy"), origin)]
        if not self.settings.http3.enabled:
            config["http3"] = "off"
        for name, value in config.items():
            entries: dict[Key, Any] = {(name,): value}
            if isinstance(value, dict) and value:
                entries = {(name, below): entry for below, entry in value.items()}
            shown = {k: "removed" if k[0] == CLASSES and x is None else _text(x) for k, x in entries.items()}
            rows += [(dotted(key), text, self.origin(key)) for key, text in shown.items()]
        return rows

    def as_json(self) -> dict[str, Any]:
        """Return settings and origins for machines."""
        origins = {name: origin for name, _, origin in self.rows()}
        return {"settings": self.settings.as_config(), "origins": origins, "warnings": self.warnings()}

    def warnings(self) -> list[str]:
        """Return warnings about what is allowed and will not do what its writer may expect."""
        return class_warnings(self.settings) + tenant_warnings(self.settings)


def settle(sources: Sources, additional_config: Any = None) -> Effective:
    """Return the settings that follow from ``sources`` and vLLM's additional config.

    Raises: ConfigError that lists everything wrong, each with its place.
    """
    file = next((given.source for given in sources.values() if given.root is not None), None)
    with nullcontext() if file is None else reading(_SETTINGS_FILE, Path(file)):
        return _settled(sources, additional_config)


def _settled(sources: Sources, additional_config: Any) -> Effective:
    if not isinstance(additional_config or {}, Mapping):
        raise ConfigError(f"{ADDITIONAL}: {additional_config!r} is not a JSON object")
    section = (additional_config or {}).get(KEY, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{ADDITIONAL}: {KEY}: {section!r} is not a mapping of settings")
    merged, faults = dict(sources), []
    for key, value in _leaves(section):
        said = next(((k, given) for k, given in sources.items() if _overlap(k, key)), None)
        if said is None:
            merged[key] = Given(value, ADDITIONAL)
        elif said != (key, said[1]) or said[1].value != value:
            faults.append(said[1].contradicted(said[0], key, value))
    nested = _nested(merged)
    settings, problems = read_settings(nested)
    faults += [_fault(merged, problem) for problem in problems + policy_problems(nested)]
    faults += [] if settings is None else [_fault(merged, problem) for problem in file_problems(settings)]
    mode = None if settings is None else settings.admission.mode
    for flag, needed in (("max_waiting", ("cap", "predict")), ("min_chance", ("predict",))):
        limit = merged.get(FLAGS[flag])
        if mode is not None and limit is not None and limit.root is None and mode not in needed:
            what = f"{limit.source} {limit.value} has no effect while admission.mode is {mode}"
            faults.append(f"{what}; add --admission {needed[0]}")
    for flag, key in FLAGS.items():
        given = merged.get(key)
        if key[0] == "http3" and flag != "http3" and given is not None and given.root is None:
            if settings is not None and not settings.http3.enabled:
                faults.append(f"{given.source} {_text(given.value)} has no effect without HTTP/3; add --http3")
    if faults or settings is None:
        raise ConfigError("\n".join(faults))
    return Effective(settings, nested, merged)


def source_text(
    slo_config: Path | None, flags: Mapping[str, Any], preset: str | None, additional_config: Any
) -> str | None:
    """Return where settings come from as text for :func:`reread`; ``None`` without a file that can be read again.

    Args:
        slo_config: Path of the file of settings.
        flags: Values by the names of :data:`FLAGS`.
        preset: Name of the preset, if there is one.
        additional_config: vLLM's additional configuration, as its flag gave it.
    """
    if slo_config is None:
        return None
    section = (additional_config or {}).get(KEY, {})
    return json.dumps([str(slo_config.absolute()), dict(flags), preset, section])


def reread(text: str) -> Effective:
    """Return the settings that follow from the sources of :func:`source_text` as they are now.

    Raises: ConfigError that lists everything wrong, each with its place.
    """
    slo_config, flags, preset, section = json.loads(text)
    return settle(read_sources(Path(slo_config), flags, preset), {KEY: section})


def _laid_over(written: Sources, below: Sources) -> dict[Key, Given]:
    """Return the settings ``written``, and of ``below`` the settings that these do not replace.

    An empty mapping of a class leaves the class as it is below, and null removes the class.
    """
    of_class = {key for key in written if key[0] == CLASSES and len(key) == 2 and any(_overlap(key, k) for k in below)}
    kept = {key: given for key, given in written.items() if key not in of_class or given.value != {}}
    sources = {key: given for key, given in below.items() if not any(_overlap(key, k) for k in kept)}
    # Of a class that only the preset has, nothing is left that null could remove.
    removed = {key for key in of_class if written[key].value is None and str(key[1]) not in DEFAULT_CLASSES}
    return sources | {key: given for key, given in kept.items() if key not in removed}


def read_admin_key(flag: str | None, environment: Mapping[str, str]) -> Given | None:
    """Return the key of the admin routes, or ``None`` if there shall be none.

    Raises: ConfigError for a key that no client could send.
    """
    given = Given(flag, "--admin-key") if flag is not None else Given(environment.get(ADMIN_KEY) or None, ADMIN_KEY)
    if given.value is None:
        return None
    if not given.value or not given.value.isascii() or not given.value.isprintable() or " " in given.value:
        raise ConfigError(f"{given.source}: the key is empty or holds a character that is not visible ASCII")
    return given


def table(rows: list[tuple[str, str, str]]) -> str:
    """Return ``rows`` as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return "\n".join(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows)


def _fault(sources: Sources, problem: Problem) -> str:
    """Return the problem with the place of the value that it is about, or of the closest one."""
    for depth in range(len(problem.path), 0, -1):
        for key, given in sources.items():
            if _overlap(key, problem.path[:depth]):
                return given.fault(problem)
    return f"{dotted((KEY, *problem.path))}: {problem.text}"


def _leaves(values: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _nested(sources: Sources) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, given in sources.items():
        inner = nested
        for name in key[:-1]:
            inner = inner.setdefault(str(name), {})
        inner[str(key[-1])] = given.value
    return nested


def _overlap(a: Key, b: Key) -> bool:
    """Return whether one of two settings is the other, or stands below it."""
    length = min(len(a), len(b))
    return a[:length] == b[:length]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_text(entry)}" for name, entry in value.items()) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
