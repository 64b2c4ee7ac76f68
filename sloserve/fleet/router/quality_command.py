"""The command ``sloserve router-quality``: it makes the router's table from graded answers and names doubtful ranks."""

import sys
from collections.abc import Sequence
from pathlib import Path

from sloserve.core import json_text
from sloserve.core.errors import ConfigError
from sloserve.fleet.router.graded import quality_of


def quality_and_report(
    paths: Sequence[Path],
    out: Path | None,
    *,
    models: str | None,
    names: Sequence[str],
    metric: str,
    filtered: str | None,
    as_json: bool,
) -> None:
    """Write the table to ``out`` or standard output.

    Args:
        paths: Files and folders to read.
        out: File for the table; ``None`` for standard output.
        models: Names of the models, separated by commas, smallest first.
        names: Names of models, each as MODEL=FOLDER.
        metric: Score of lm-evaluation-harness that counts.
        filtered: Filter of lm-evaluation-harness that counts.
        as_json: Whether rows are printed instead.

    Raises:
        ConfigError: Files or flags are wrong, or ``out`` cannot be written.
    """
    pairs = [text.partition("=") for text in names]
    if wrong := [name + sign + folder for name, sign, folder in pairs if not name or not folder]:
        raise ConfigError(f"--name {wrong[0]}: give MODEL=FOLDER, as --name opt-1.3b=facebook__opt-1.3b")
    given = [name.strip() for name in models.split(",")] if models else []
    renamed = {folder: name for name, _, folder in pairs}
    table = quality_of(paths, names=renamed, metric=metric, filtered=filtered, models=given)
    made = table.as_yaml()
    for task, lesser, better in table.undecided():
        print(f"{task}: {lesser} and {better} cannot be distinguished; grade more answers", file=sys.stderr)
    if out is not None:
        try:
            out.write_text(made, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {out}: {error.strerror}") from None
        print(f"wrote {out}", file=sys.stderr)
    if as_json:
        print(json_text.dumps(table.as_rows(), indent=2))
    elif out is None:
        print(made, end="")
