"""What a policy is and which options it has, as its class says and the docstring beneath each field of ``Settings``."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import make_policy


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a policy.

    Args:
        kind: Type of its value as written in Python.
        meaning: Words for its meaning; empty where no docstring stands beneath it.
    """

    name: str
    kind: str
    default: Any
    meaning: str


@dataclass(frozen=True, slots=True)
class Description:
    """Description of a policy.

    Args:
        summary: The first sentence about the policy.
    """

    summary: str
    options: tuple[Option, ...]


def describe_policy(name: str) -> Description:
    """Describe the policy registered under ``name``.

    Raises: ConfigError for a policy that is unknown or cannot be loaded.
    """
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
    """Return the docstrings beneath the fields of the class and of its bases, read as vLLM reads its own settings'."""
    found: dict[str, str] = {}
    for base in reversed(settings.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # a class that was made without a file
            continue
        body = cast(ast.ClassDef, ast.parse(source).body[0]).body
        for field, below in itertools.pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(meaning))):
                    found[name] = _plain(meaning).rstrip(".")
    return found


def _plain(docstring: str) -> str:
    """Return a docstring as one line, without marks of code."""
    return " ".join(docstring.replace("``", "").split())
