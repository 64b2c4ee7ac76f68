"""What a policy is and which options it has, as its class and the docstring of its ``Settings`` say.

A ``Settings`` docstring explains its fields as ``name: meaning.``, several at once as ``name, other: meaning.``
"""

import dataclasses
import inspect
import re
from dataclasses import dataclass
from typing import Any, get_type_hints

from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import make_policy


@dataclass(frozen=True, slots=True)
class Option:
    """One option. kind: its type as written in Python. meaning: empty where the docstring does not name it."""

    name: str
    kind: str
    default: Any
    meaning: str


@dataclass(frozen=True, slots=True)
class Description:
    """summary: the first sentence about the policy."""

    summary: str
    options: tuple[Option, ...]


def describe_policy(name: str) -> Description:
    """The policy registered under ``name``. Raises: ConfigError for one that is unknown or cannot be loaded."""
    cls = type(make_policy(name))
    summary = re.match(r"(.+?[.!?])(?:\s|$)", _plain(inspect.getdoc(cls) or ""))
    return Description(summary[1] if summary else "", _options(cls))


def _options(cls: type[Policy]) -> tuple[Option, ...]:
    hints, meanings = get_type_hints(cls.Settings), _meanings(cls.Settings)
    common = {f.name for f in dataclasses.fields(Policy.Settings)}
    own_first = sorted(dataclasses.fields(cls.Settings), key=lambda f: f.name in common)
    return tuple(
        Option(f.name, getattr(hints[f.name], "__name__", str(hints[f.name])), f.default, meanings.get(f.name, ""))
        for f in own_first
    )


def _meanings(settings: type) -> dict[str, str]:
    """Returns the meaning of each field that a docstring of the class or of a base names."""
    names = "|".join(f.name for f in dataclasses.fields(settings))
    if not names:
        return {}
    label = re.compile(rf"(?:^|(?<=[.;] ))((?:{names})(?:, (?:{names}))*): ")
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__[:-1]):
        parts = label.split(_plain(vars(base).get("__doc__") or ""))
        for named, meaning in zip(parts[1::2], parts[2::2], strict=True):
            found |= dict.fromkeys(named.split(", "), meaning.strip().rstrip(".;"))
    return found


def _plain(docstring: str) -> str:
    """As one line, without marks of code."""
    return " ".join(docstring.replace("``", "").split())
