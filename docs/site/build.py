"""Builds the site of the documentation: ``python docs/site/build.py [FOLDER]``, which writes ``FOLDER/html``.

The pages are the markdown files of this repository as they are, but for links that leave ``docs/``: a file that they
name is put beside the pages, a folder is named without a link. The pages below ``reference/`` are made from the code. A
link that leads nowhere ends the build, as does a page that ``zensical.toml`` does not list; what it lists and is not
there is left out.
"""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = Path(__file__).parent
HOME = "index.md"
INDEX = "all-pages.md"
"""Place of ``docs/README.md``: the site has room for one index, which is the README of the repository."""
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
EXAMPLES = ("*.yaml", "*.sh")
PYTHON = (
    ("sloserve.api.middleware", ("SLOMiddleware",)),
    ("sloserve.client", ("TokenBuffer",)),
    ("sloserve.scheduler.policy", ("Policy",)),
)
"""The public Python names: those that CHANGELOG.md promises to keep, and what a policy derives from."""

_SCHEDULER = "`sloserve.vllm_plugin.SLOScheduler` is the value of vLLM's `--scheduler-cls`; it is not called by hand."

_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


class Pages:
    """The pages of the site, written into ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        sources = {path: str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))}
        self._places = {
            **sources,
            ROOT / "README.md": HOME,
            DOCS / "README.md": INDEX,
            **{ROOT / name: name for name in TOP},
        }

    def gather(self) -> None:
        """Writes all pages that stand in the repository, and the files that they lead to."""
        for source, place in self._places.items():
            parts = _FENCE.split(source.read_text(encoding="utf-8"))
            text = "".join(part if at % 2 else self._linked(part, source, place) for at, part in enumerate(parts))
            self.write(place, text)

    def write(self, place: str, text: str) -> None:
        path = self._folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _linked(self, text: str, source: Path, place: str) -> str:
        def moved(match: re.Match[str]) -> str:
            shown, (name, hash_, anchor) = match[1], match[2].partition("#")
            if not name or re.match(r"[a-z]+:", name):
                return match[0]
            target = (source.parent / name).resolve()
            if not target.exists():
                raise SystemExit(f"{source.relative_to(ROOT)}: the link {match[2]} leads nowhere")
            if target.is_dir():
                return shown
            to = self._places.get(target) or self._beside(target)
            return f"[{shown}]({os.path.relpath(to, Path(place).parent)}{hash_}{anchor})"

        return _LINK.sub(moved, text)

    def _beside(self, target: Path) -> str:
        """The place of a copy of a file that is no page: of a picture as it is, else as text, which browsers show."""
        place = f"files/{target.relative_to(ROOT)}" + ("" if target.suffix == ".png" else ".txt")
        copied = self._folder / place
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, copied)
        return place


def commands() -> str:
    """All commands and flags of ``sloserve``, as its ``--help`` has them."""
    from sloserve.cli import app

    made = ["# Commands and flags", "Made from the code; `--help` of each command shows the same."]
    for name, command in _commands("sloserve", get_command(app)):
        made += [f"## {name}", _plain(command.help or "")]
        flags = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
        rows = [f"| {_flag(one)} | {_cell(getattr(one, 'help', None) or '')} |" for one in flags]
        made += ["\n".join(["| flag | meaning |", "| --- | --- |", *rows])] if rows else []
    return "\n\n".join(made) + "\n"


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, one in sorted(command.commands.items()):
        if not one.hidden:
            yield from _commands(f"{name} {part}", one)


def _flag(one: click.Parameter) -> str:
    names = [*one.opts, *one.secondary_opts] if one.param_type_name == "option" else [(one.name or "").upper()]
    return ", ".join(f"`{name}`" for name in names)


def files() -> str:
    """The example of each kind of file, whole: their comments explain every key."""
    made = ["# Files", "The examples of `configs/`, whole. Their comments explain the keys."]
    for path in sorted(path for kind in EXAMPLES for path in (ROOT / "configs").glob(kind)):
        language = "yaml" if path.suffix == ".yaml" else "bash"
        made += [f"## {path.name}", f"```{language}\n{path.read_text(encoding='utf-8').rstrip()}\n```"]
    return "\n\n".join(made) + "\n"


def python() -> str:
    """The public Python names with their signatures and docstrings."""
    made = ["# Python", "The names that are meant to stay. Others may move until a first release.", _SCHEDULER]
    for module, names in PYTHON:
        for name in names:
            made += [f"## {module}.{name}", *_described(getattr(importlib.import_module(module), name))]
    return "\n\n".join(made) + "\n"


def _described(kind: Any) -> Iterator[str]:
    yield f"```python\n{kind.__name__}{_signature(kind)}\n```"
    yield _plain(inspect.getdoc(kind) or "")
    for name, one in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and one.__doc__ and name in kind.__dict__:
            yield f"### {kind.__name__}.{name}"
            yield f"```python\n{name}{_signature(one)}\n```"
            yield _plain(inspect.getdoc(one) or "")


def _signature(of: Callable[..., Any]) -> str:
    return str(inspect.signature(of)).replace("'", "")


def _plain(text: str) -> str:
    """A docstring as markdown: double backquotes and roles are code, angles no tags, names of pages links."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", inspect.cleandoc(text).replace("``", "`"))
    text = re.sub(r"\bdocs/([\w-]+)\.md", r"[docs/\1.md](../\1.md)", text)
    return re.sub(r"<(?=\w)", "&lt;", text)


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(folder / "pages")
    pages.gather()
    for name, made in (("commands", commands), ("files", files), ("python", python)):
        pages.write(f"reference/{name}.md", made())
    shutil.copytree(SITE / "assets", folder / "pages" / "assets")
    there = {str(path.relative_to(folder / "pages")) for path in (folder / "pages").rglob("*.md")}
    lines = (SITE / "zensical.toml").read_text(encoding="utf-8").splitlines(keepends=True)
    listed = {name: line for line in lines for name in re.findall(r'= "([^"]+\.md)"', line)}
    if there - set(listed):
        raise SystemExit(f"docs/site/zensical.toml does not list {', '.join(sorted(there - set(listed)))}")
    left_out = {line for name, line in listed.items() if name not in there}
    (folder / "zensical.toml").write_text("".join(line for line in lines if line not in left_out), encoding="utf-8")
    zensical = Path(sys.executable).parent / "zensical"
    sys.exit(subprocess.run([zensical, "build", "--strict"], cwd=folder, check=False).returncode)


if __name__ == "__main__":
    main()
