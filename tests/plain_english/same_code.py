"""Say whether commits change docstrings and comments alone: without docstrings, ``ast.dump`` is equal before and after.

Usage: ``python -m tests.plain_english.same_code BASE..HEAD``
"""

import ast
import subprocess
import sys
from collections.abc import Sequence


def without_docstrings(source: str) -> str:
    """Return a dump of the syntax tree of a file without its docstrings and the docstrings of attributes.

    Args:
        source: the text of the file.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each Python file of which a commit in a range changes the code; return 1 if there is one, else 0.

    Args:
        arguments: the range of commits, as git writes it; ``None`` for the arguments of this process.
    """
    (commits,) = sys.argv[1:] if arguments is None else arguments
    changed = 0
    for commit in _git("rev-list", "--reverse", commits).split():
        for path in _git("diff-tree", "-r", "--no-commit-id", "--name-only", "--diff-filter=M", commit).splitlines():
            if path.endswith(".py"):
                before, after = (without_docstrings(_git("show", f"{each}:{path}")) for each in (f"{commit}^", commit))
                if before != after:
                    print(f"{commit[:10]}: {path} changes code")
                    changed += 1
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
