"""The use of tenants as text: a table for people, CSV or JSON for programs."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from sloserve.cli.output_flags import columns
from sloserve.core import json_text
from sloserve.fleet.store.usage import COUNTED, UsedInHour

Format = Literal["table", "csv", "json"]

_COLUMNS: Final = ("hour", "tenant", *COUNTED)


def as_text(rows: Sequence[UsedInHour], form: Format) -> str:
    """Return rows as text; an hour is written as the time in UTC at which it begins."""
    found = [_row(row) for row in rows]
    if form == "json":
        return json_text.dumps([dict(zip(_COLUMNS, row, strict=True)) for row in found], indent=2)
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *found])
        return text.getvalue().rstrip("\n")
    return columns([_COLUMNS, *([str(cell) for cell in row] for row in found)])


def _row(row: UsedInHour) -> list[str | int]:
    hour = datetime.fromtimestamp(row.hour_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
    return [hour, row.tenant, *(getattr(row, name) for name in COUNTED)]
