"""Settings of the service classes, which are laid over the built-in classes field by field.

A class that the settings state keeps what they leave out of its built-in namesake, and built-in classes that they do
not name stay as they are. The value ``null`` removes a class.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from sloserve.core.files.json_schema import Written
from sloserve.core.files.model import NOT_TINY, Allowed, Problem, check_model, unknown
from sloserve.core.promises import LEAST_LEVEL, MOST_LEVEL, PromiseWish
from sloserve.core.slo import DEFAULT_CLASSES, MAX_TARGET_S, MAX_TDS, ClassTable, SLOClass, Targets

MAX_RANK = 1000
CLASSES, DEFAULT_CLASS = "classes", "default_class"
"""Names of the two settings."""

Seconds = Annotated[float, Field(strict=True, gt=0.0, le=MAX_TARGET_S), NOT_TINY]
SECONDS = Allowed(f"a number of seconds above 0, up to {MAX_TARGET_S:.0f}")
_Milliseconds = Annotated[
    Annotated[float, Field(strict=True, gt=0.0, le=MAX_TARGET_S * 1e3), NOT_TINY] | None,
    Allowed(f"a number of milliseconds above 0, up to {MAX_TARGET_S * 1e3:.0f}"),
]
_Rank = Annotated[int, Field(strict=True, ge=0, le=MAX_RANK), Allowed(f"a whole number from 0 to {MAX_RANK}")]
_BUILT_IN = {c.name: c for c in DEFAULT_CLASSES}
_BUILT_IN_RANKS = ", ".join(f"{c.name} {c.rank}" for c in DEFAULT_CLASSES)


class ClassSettings(BaseModel):
    """One service class, see :class:`~sloserve.core.slo.SLOClass`; targets in the wire's names and units."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: _Rank
    aged_after_s: Annotated[Seconds, SECONDS] = 60.0
    ttft_ms: _Milliseconds = None
    tpot_ms: _Milliseconds = None
    e2e_ms: _Milliseconds = None
    tds: Annotated[
        Annotated[float, Field(strict=True, gt=0.0, le=MAX_TDS), NOT_TINY] | None,
        Allowed(f"a number of tokens per second above 0, up to {MAX_TDS:.0f}"),
    ] = None
    promise: Annotated[
        Annotated[float, Field(strict=True, ge=LEAST_LEVEL, le=MOST_LEVEL)] | None,
        Allowed(f"a probability from {LEAST_LEVEL:g} to {MOST_LEVEL:g}"),
    ] = None
    promise_fallback: Annotated[bool, Field(strict=True)] = False

    def slo_class(self, name: str) -> SLOClass:
        """Return the class that these settings describe."""
        ttft_s, tpot_s, e2e_s = (None if x is None else x / 1e3 for x in (self.ttft_ms, self.tpot_ms, self.e2e_ms))
        promise = None if self.promise is None else PromiseWish(self.promise, self.promise_fallback)
        return SLOClass(name, self.rank, Targets(ttft_s, tpot_s, e2e_s, self.tds), self.aged_after_s, promise)


class BuiltInClass(ClassSettings):
    """What a file may state of a built-in class, which has a rank already."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema.pop("required", None) and None)


class _OtherClasses(BaseModel):
    model_config = ConfigDict(extra="allow", json_schema_extra={"minProperties": 1})
    __pydantic_extra__: dict[str, ClassSettings | None] = Field(init=False)


_FIELDS: Any = {name: (BuiltInClass | None, None) for name in _BUILT_IN}
_AS_WRITTEN: Any = create_model("Classes", __base__=_OtherClasses, **_FIELDS)

Classes = Annotated[
    ClassTable,
    Written(_AS_WRITTEN),
    Allowed("a mapping of at least one class name to settings, or to null to remove the class"),
]
"""Type of the setting ``classes``."""


def class_table(section: Mapping[str, Any]) -> tuple[ClassTable, list[Problem]]:
    """Return the built-in classes with the classes of ``section`` laid over them, and what is wrong with the section.

    What cannot be read is left as it is built in, so that the rest of the settings can be checked against the table.
    """
    stated, problems = section.get(CLASSES), []
    if CLASSES in section and not (isinstance(stated, Mapping) and stated):
        problems.append(Problem((CLASSES,), f"{stated!r} is not a mapping of at least one class name to settings"))
    entries: Mapping[str, Any] = stated if isinstance(stated, Mapping) else {}
    classes = {name: built_in for name, built_in in _BUILT_IN.items() if name not in entries}
    for name, entry in entries.items():
        if entry is None:
            problems += [] if name in _BUILT_IN else [_nothing_to_remove(name)]
            continue
        classes[name], wrong = _laid_over(name, entry)
        problems += wrong
    if not classes:
        problems.append(Problem((CLASSES,), "all classes are removed; keep at least one"))
        classes = _BUILT_IN
    default, wrong = _default_class(section, ClassTable(classes, next(iter(classes))).names)
    return ClassTable(classes, default), problems + wrong


def stated_classes(section: Mapping[str, Any], table: ClassTable) -> ClassTable:
    """Return the classes of ``table`` that ``section`` states, or the whole table where it states none.

    Simulated requests have these classes: a file that describes a workload names the classes that occur in it.
    """
    stated = section.get(CLASSES) or {}
    classes = {c.name: c for c in table if c.name in stated}
    if not classes:
        return table
    return ClassTable(classes, table.default.name if table.default.name in classes else next(iter(classes)))


def no_class(path: tuple[str, ...], value: Any, names: tuple[str, ...]) -> Problem:
    """Return the problem of a value that should name a class and names none of ``names``."""
    hint = f"; {CLASSES} removes it with null" if value in list(_BUILT_IN) and value not in names else ""
    return Problem(path, f"{value!r} is not one of the classes {', '.join(names)}{hint}")


def _laid_over(name: str, entry: Any) -> tuple[SLOClass, list[Problem]]:
    """Return the class ``name`` with the fields of ``entry`` over its built-in ones, and what is wrong with them."""
    built_in, at = _BUILT_IN.get(name), (CLASSES, name)
    instead = built_in or SLOClass(name, rank=0)
    if not isinstance(entry, Mapping):
        return instead, [
            Problem(
                at, f"{entry!r} is not a mapping with {', '.join(ClassSettings.model_fields)}; null removes a class"
            )
        ]
    if built_in is None and "rank" not in entry:
        _, wrong = check_model(ClassSettings, {"rank": 0, **entry}, at)
        text = f"is missing; needed: a whole number from 0 to {MAX_RANK}, and a lower one is more urgent; "
        return instead, [Problem((*at, "rank"), f"{text}the built-in classes have {_BUILT_IN_RANKS}"), *wrong]
    made, wrong = check_model(ClassSettings, {**(built_in.as_config() if built_in else {}), **entry}, at)
    return (instead if made is None else made.slo_class(name)), wrong


def _nothing_to_remove(name: str) -> Problem:
    return Problem((CLASSES, name), f"null removes a class, and {name!r} {unknown(name, tuple(_BUILT_IN))}")


def _default_class(section: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, list[Problem]]:
    default = DEFAULT_CLASSES.default.name
    if DEFAULT_CLASS in section:
        stated = section[DEFAULT_CLASS]
        return (stated, []) if stated in list(names) else (names[0], [no_class((DEFAULT_CLASS,), stated, names)])
    if default in names:
        return default, []
    text = f"null removes the class of requests that name none; state another as {DEFAULT_CLASS}: {' or '.join(names)}"
    return names[0], [Problem((CLASSES, default), text)]
