"""Policies by name, found as entry points: third parties register theirs in the same groups as we do ours.

The group says what a policy is for: ``sloserve.policies`` for servers, ``sloserve.policies_for_experiments`` for
comparisons with papers and rivals, ``sloserve.policies_for_tests`` for tests alone. A policy is written ``name`` or
``name:option=value:option=value``, on the command line and in configuration alike.
"""

import dataclasses
import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.extras import explained
from sloserve.core.nearest import did_you_mean
from sloserve.core.registrations import registered
from sloserve.scheduler.policy import Policy

GROUP = "sloserve.policies"
"""Policies that a server can be run with."""
FOR_EXPERIMENTS = "sloserve.policies_for_experiments"
"""Policies that reproduce a paper or one of its rivals; they are listed apart."""
FOR_TESTS = "sloserve.policies_for_tests"
"""Policies that can be loaded by name and are listed nowhere."""
GENERAL = "auto"
"""The policy for all kinds of targets; each other one has fewer parts, and suits fewer mixes."""


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the policies that are installed; of two with one name, the one for servers."""
    return registered(FOR_TESTS) | registered(FOR_EXPERIMENTS) | registered(GROUP)


def policy_names(*, for_experiments: bool | None = None) -> tuple[str, ...]:
    """Return the names of the installed policies, sorted, without policies for tests.

    Args:
        for_experiments: ``True`` for the policies for experiments alone, ``False`` for the policies with which a server
            can run, ``None`` for both.
    """
    found = {name: ep.group == FOR_EXPERIMENTS for name, ep in _entry_points().items() if ep.group != FOR_TESTS}
    return tuple(sorted(name for name, apart in found.items() if for_experiments in (None, apart)))


def main_policies() -> tuple[str, ...]:
    """Return the names of the policies that a server can be run with, the general one first, the others sorted.

    A list of all policies is taken from here.
    """
    return tuple(sorted(policy_names(for_experiments=False), key=lambda name: (name != GENERAL, name)))


def parse_policy(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name:option=value:...`` into the name and its options.

    Raises: ConfigError when an option is not of the form ``option=value``.
    """
    name, *pairs = text.strip().split(":")
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"policy {text!r}: {pair!r} is not of the form option=value")
        options[key.strip()] = value.strip()
    return name, options


def policy_text(name: str, options: Mapping[str, Any]) -> str:
    """Return the text of a policy with these options: the inverse of :func:`parse_policy`."""
    return ":".join([name, *(f"{key}={value}" for key, value in options.items())])


def make_policy(
    name: str, options: Mapping[str, Any] | None = None, *, seed: int = 0, allow_files: bool = True
) -> Policy:
    """Build the policy registered under ``name`` with its ``Settings`` filled from ``options``.

    Args:
        name: Name of the policy.
        options: Values by option; ``None`` for the defaults.
        seed: Seed of what the policy draws.
        allow_files: Whether an option of type ``Path`` may name a file. It is off for what arrives over the network:
            there an option of type ``ProfileName | Path`` takes names alone, and one of type ``Path`` cannot be set.

    Raises: ConfigError for an unknown policy or option, a value of the wrong type, or a package that is missing.
    """
    cls = policy_class(name)
    settings = _settings(name, cls, options or {}, allow_files)
    try:
        return cls(settings, seed=seed)
    except ModuleNotFoundError as error:  # some values of an option need a package that the policy does without
        missing = explained(error, f"policy {policy_text(name, options or {})}")
        if missing is None:
            raise
        raise missing from error


def policy_class(name: str) -> type[Policy]:
    """Return the class registered under ``name``.

    Raises: ConfigError for an unknown name, or a class that cannot be loaded.
    """
    found = _entry_points().get(name)
    if found is None:
        hint = did_you_mean(name, policy_names())
        listed = [", ".join(policy_names(for_experiments=apart)) for apart in (False, True)]
        raise ConfigError(f"unknown policy {name!r}; installed: {listed[0]}; for experiments: {listed[1]}{hint}")
    try:
        cls = found.load()
    except Exception as error:
        missing = explained(error, f"policy {name}") if isinstance(error, ModuleNotFoundError) else None
        if missing is not None:
            raise missing from error
        raise ConfigError(f"policy {name!r} ({found.value}) cannot be loaded: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise ConfigError(f"policy {name!r}: {found.value} is not a subclass of sloserve.scheduler.policy.Policy")
    if not issubclass(cls.Settings, Policy.Settings):
        raise ConfigError(
            f"policy {name!r}: its Settings do not extend Policy.Settings, which has the options of every policy"
        )
    return cls


def _settings(name: str, cls: type[Policy], options: Mapping[str, Any], allow_files: bool) -> Any:
    hints = get_type_hints(cls.Settings)
    known = {f.name for f in dataclasses.fields(cls.Settings)}
    values = {}
    for key, value in options.items():
        if key not in known:
            raise ConfigError(f"policy {name!r} has no option {key!r}; it has: {', '.join(sorted(known)) or 'none'}")
        values[key] = _convert(f"policy {name!r}, option {key!r}", value, _kinds(hints[key]), allow_files)
    try:
        return cls.Settings(**values)
    except ValueError as error:
        raise ConfigError(f"policy {name!r}: {error}") from error


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types that an option may have, tried in this order: ``float, str`` of ``float | str | None``.

    A file's path fits any text, and so comes last.
    """
    kinds = tuple(one for one in get_args(hint) if one is not NoneType) or (hint,)
    return tuple(sorted(kinds, key=lambda kind: kind is Path))


def _convert(where: str, value: Any, kinds: tuple[Any, ...], allow_files: bool) -> Any:
    """Return ``value`` as the first of ``kinds`` that fits: text is read, numbers may only widen."""
    if kinds == (bool,):
        flags = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if str(value).lower() not in flags:
            raise ConfigError(f"{where}: {value!r} is not true or false")
        return flags[str(value).lower()]
    reason = ""
    for kind in kinds if not isinstance(value, bool) else ():
        if kind is Path and not allow_files:
            break
        try:
            converted = _read(kind, value)
        except numbers.NotANumber as error:
            if len(kinds) == 1:
                raise ConfigError(f"{where}: {error}") from None
            continue
        except (TypeError, ValueError, OverflowError) as error:
            reason = f"; {error}"
            continue
        # A value that reads back differently is of another type: 2.7 or true for a count, nan for a duration.
        if converted == value or (isinstance(value, str) and converted == converted):
            return converted
    if Path in kinds and not allow_files:
        raise ConfigError(f"{where}: {value!r} would name a file, which only the server's configuration may do{reason}")
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise ConfigError(f"{where}: {value!r} is not a valid {names}")


def _read(kind: Any, value: Any) -> Any:
    """Return ``value`` as ``kind``. Raises: TypeError, ValueError, OverflowError."""
    if kind not in (int, float):
        return kind(value)
    if isinstance(value, str):
        return numbers.whole(value) if kind is int else numbers.number(value)
    return numbers.bounded(kind(value), value)
