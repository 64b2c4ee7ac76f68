"""Print the size and the shape of a checkout, to compare two states of it: ``python -m tests.architecture.measure``.

Figures are of the checkout that is the working folder: packages, arrows between them, files, lines, words of the
documentation, bytes of published results, the most frequent last words of class names, and what ``sloserve serve`` can
import, statements inside functions included.
"""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import grimp

SERVING = (
    "sloserve.api.serve_command",
    "sloserve.api.middleware",
    "sloserve.api.endpoint_plugin",
    "sloserve.vllm_plugin.engine.scheduler",
    "sloserve.vllm_plugin.engine.asynchronous",
    "sloserve.vllm_plugin.server.install",
    "sloserve.vllm_plugin.swap.connector",
    *(f"sloserve.scheduler.{name}.policy" for name in ("andes", "auto", "econo", "qlm", "sa")),
    *(f"sloserve.scheduler.{name}" for name in ("edf", "fcfs", "priority", "sjf")),
)
"""Where serving begins: the command, what vLLM loads by name, and the policies, which entry points name."""


def measured(root: Path, serving: tuple[str, ...] = SERVING) -> dict[str, str]:
    """Return figures of the checkout at ``root`` by name, as text.

    Args:
        root: Folder of the checkout; ``sloserve`` must be importable from it.
        serving: Modules from which what serving needs is followed.
    """
    files = sorted((root / "sloserve").rglob("*.py"))
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    code = {file: _lines_of_code(file.read_text(encoding="utf-8")) for file in files}
    graph = grimp.build_graph("sloserve", cache_dir=None)
    arrows = {
        (importer, imported)
        for module in graph.modules
        for target in graph.find_modules_directly_imported_by(module)
        if (importer := _package(module)) and (imported := _package(target)) and importer != imported
    }
    needed = {module for start in serving for module in {start, *graph.find_upstream_modules(start)}}
    of_serving = [file for file in files if _module(root, file) in needed]
    documentation = [root / "README.md", *(root / "docs").rglob("*.md")]
    results = [file for file in (root / "benchmarks" / "results").rglob("*") if file.is_file()]
    serving_lines = sum(lines[file] for file in of_serving), sum(code[file] for file in of_serving)
    stems = Counter(_last_word(name) for file in files for name in _classes(file))
    return {
        "packages at the first level": str(len(list((root / "sloserve").glob("*/__init__.py")))),
        "arrows between them": str(len(arrows)),
        "files of the package": str(len(files)),
        "lines of the package": f"{sum(lines.values()):,}, {sum(code.values()):,} of them code",
        "files that serving can import": str(len(of_serving)),
        "lines that serving can import": "{:,}, {:,} of them code".format(*serving_lines),
        "words of README and docs": f"{sum(len(file.read_text(encoding='utf-8').split()) for file in documentation):,}",
        "published results": f"{len(results)} files, {sum(file.stat().st_size for file in results):,} bytes",
        "last words of class names": ", ".join(f"{stem} {count}" for stem, count in stems.most_common(8)),
    }


def _lines_of_code(source: str) -> int:
    """Return the number of lines that are neither blank nor a comment nor part of a docstring."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for i, line in lines if line.strip() and i not in prose and not line.lstrip().startswith("#"))


def _package(module: str) -> str | None:
    """Return the first package below the root that ``module`` is in; ``None`` for the root itself."""
    return ".".join(module.split(".")[1:2]) or None


def _module(root: Path, file: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _classes(file: Path) -> list[str]:
    return [n.name for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(n, ast.ClassDef)]


def _last_word(name: str) -> str:
    return re.findall(r"[A-Z]+[a-z0-9]*|[a-z0-9]+", name.strip("_"))[-1]


def main() -> None:
    """Print the figures of the working folder's checkout; module names on the command line replace :data:`SERVING`."""
    found = measured(Path.cwd(), tuple(sys.argv[1:]) or SERVING)
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    main()
