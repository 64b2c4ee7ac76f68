"""The example files of ``configs/``: of the checkout, or as they came with an installed package."""

from pathlib import Path
from typing import Final

import sloserve
from sloserve.core.errors import ConfigError
from sloserve.core.json_lines import lines_of
from sloserve.core.nearest import did_you_mean

_PACKAGE: Final = Path(sloserve.__file__).parent
_PLACES: Final = (_PACKAGE / "configs", _PACKAGE.parent / "configs")
"""Folders of the example files: in a wheel, and in a checkout."""
_SCHEMA_LINE: Final = "# yaml-language-server"


def examples() -> dict[str, Path]:
    """Return the example files by their names below ``configs``, in order.

    Raises: ConfigError if the package was installed without them.
    """
    for place in _PLACES:
        if place.is_dir():
            return {str(path.relative_to(place)): path for path in sorted(place.rglob("*")) if path.is_file()}
    raise ConfigError("this installation has no example files; they are in configs/ of the source")


def purpose(path: Path) -> str:
    """Return the first comment of an example; the empty string if it has none."""
    for line in lines_of(path.read_text(encoding="utf-8")):
        if line.startswith("# ") and not line.startswith(_SCHEMA_LINE):
            return line.removeprefix("# ")
        if not line.startswith("#"):
            break
    return ""


def copied(names: list[str], folder: Path) -> list[Path]:
    """Copy examples into ``folder``, which is created, and return the paths of the copies.

    Args:
        names: Names of the examples; an empty list for all of them.
        folder: Folder below which the copies are written.

    Raises: ConfigError for an unknown name, a file that exists already, or a folder that cannot be written.
    """
    found = examples()
    for name in names:
        if name not in found:
            raise ConfigError(f"no example {name!r}; there are: {', '.join(found)}{did_you_mean(name, found)}")
    copies = {found[name]: folder / name for name in names or found}
    there = [str(copy) for copy in copies.values() if copy.exists()]
    if there:
        raise ConfigError(f"{there[0]} exists already and is not overwritten; give another folder with --to")
    try:
        for example, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(example.read_bytes())
            copy.chmod(example.stat().st_mode & 0o777)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    return list(copies.values())
