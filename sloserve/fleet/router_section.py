"""The section ``router`` of a fleet's file: the settings of a router, or the name of a file that has them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import reading
from sloserve.core.files.marked_yaml import load_yaml
from sloserve.core.files.model import Problem, at_place, check_model, unknown
from sloserve.fleet.router.settings import AUTO, ROUTER_FILE, RouterSettings, router_in, router_problems

_AT: Final = "router"


@dataclass(frozen=True, slots=True)
class FleetRouter:
    """The router of a fleet.

    Args:
        settings: Settings of the router.
        folder: Folder of its policies, if their names say no more.
    """

    settings: RouterSettings
    folder: Path = field(default_factory=Path)

    @property
    def sets(self) -> dict[str, tuple[str, ...]]:
        """The models under each name that leaves the choice open, ``auto`` first."""
        named = {name: tuple(models) for name, models in self.settings.sets.items()}
        return {AUTO: tuple(self.settings.models), **named}


def read_section(
    section: Any, folder: Path, models: Sequence[str], classes: Collection[str]
) -> tuple[FleetRouter | None, list[Problem]]:
    """Return the router of a fleet of these models and classes, and everything that is wrong with it.

    Args:
        section: The section as written; ``None`` for none.
        folder: Folder of the fleet's file.
        models: Names of the fleet's models.
        classes: Names of the fleet's classes.
    """
    if section is None:
        return None, []
    if isinstance(section, str):
        path = folder / section
        try:
            with reading(ROUTER_FILE, path):
                root = load_yaml(path)
                router = FleetRouter(router_in(root), path.parent)
        except ConfigError as error:
            return None, [Problem((_AT,), str(error))]
        found = _misfits(router.settings, models, classes)
        return router, [Problem((_AT,), at_place(root, problem)) for problem in found]
    if not isinstance(section, dict):
        return None, [Problem((_AT,), f"{section!r} is not a mapping, or the path of a router's file")]
    settings, problems = check_model(RouterSettings, section, (_AT,))
    if settings is None:
        return None, problems
    found = router_problems(settings) or _misfits(settings, models, classes)
    return FleetRouter(settings, folder), [Problem((_AT, *path), text) for path, text in found]


def _misfits(settings: RouterSettings, models: Sequence[str], classes: Collection[str]) -> list[Problem]:
    """Return names in the settings that stand for nothing in the fleet, or for two things."""
    known, levels = tuple(models), tuple(classes)
    found = [
        Problem(("models", i), f"model {model!r} {unknown(model, known)}")
        for i, model in enumerate(settings.models)
        if model not in known
    ]
    for key, named in (("task_by_class", settings.task_by_class), ("weights", settings.weights)):
        found += [Problem((key, c), f"class {c!r} {unknown(c, levels)}") for c in named if c not in levels]
    for name in (AUTO, *settings.sets):
        if name in known:
            at = ("models",) if name == AUTO else ("sets", name)
            found.append(Problem(at, f"{name!r} is a model of the fleet; give one of them another name"))
    return found
