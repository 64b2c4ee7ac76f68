"""The live requests of a server on a terminal: which can still be in time, and why each is where it is."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from sloserve.core.in_words import figure, in_one_unit
from sloserve.engine.why import PHASE_IN_WORDS, sentence
from sloserve.sim.report.live_text import CLASS_CHARS, DIM, HELD_UP, View, columns, due_column, plain, table

_HELD: Final = frozenset({"waiting", "paused", "preempted", "swapped"})
_WAITS: Final = frozenset({"waiting", "preempted", "swapped"})

Row = Mapping[str, Any]


def _by_due(row: Row) -> tuple[Any, ...]:
    return row["due_s"] is None, row["due_s"] or row["since_s"]


def _by_what_is_left(row: Row) -> tuple[Any, ...]:
    """Return the key that puts requests behind their pace after the others, the farther behind the later."""
    if _is_behind(row):
        return True, -row["left_s"]
    return False, *_by_due(row)


def _is_behind(row: Row) -> bool:
    """Return whether the next token is overdue, which can be made up for."""
    return not row["is_lost"] and row["output_tokens"] > 0 and (row["left_s"] or 0.0) < 0.0


SORTS: Final[Mapping[str, Callable[[Row], tuple[Any, ...]]]] = {
    "what can be done": lambda row: (row["is_lost"], not row["waits"], *_by_what_is_left(row)),
    "deadline": _by_due,
    "class": lambda row: (row["class"], *_by_due(row)),
    "phase": lambda row: (row["phase"], *_by_due(row)),
    "age": lambda row: (row["arrival_s"],),
}
"""Orders of the requests, by their name; the first is the usual one: waiting requests before the ones that are served.
"""


@dataclass(frozen=True, slots=True)
class ShownRows:
    """What is shown of the requests.

    Args:
        sort: One of :data:`SORTS`.
        filter: Text that a shown request has in its name, class, phase or reason; empty for all requests.
        late: Whether requests that have missed a deadline are shown one by one, not only counted.
    """

    sort: str = next(iter(SORTS))
    filter: str = ""
    late: bool = False


def reason(view: View, cause: Sequence[Any]) -> str:
    """Return a cause of the feed, ``[why, figure, of]``, as a sentence."""
    why, first, of = cause
    return sentence(str(view["says"][why]), first, of)


def phase_in_words(view: View, phase: int) -> str:
    """Return a phase as people say it; a phase of a newer server as that server calls it."""
    return PHASE_IN_WORDS[phase] if phase < len(PHASE_IN_WORDS) else str(view["phases"][phase])


def requests(view: View, most: int, choice: ShownRows, *, is_narrow: bool) -> RenderableType:
    """Return the table of requests; the ones that cannot be in time any more are a count, unless they are chosen."""
    rows = [_told(view, key, row) for key, row in columns(view)]
    if not rows:
        return Text("no request is live", DIM)
    late = [row for row in rows if row["is_lost"]]
    shown = [row for row in rows if (choice.late or not row["is_lost"]) and _has(row, choice.filter)]
    shown.sort(key=SORTS[choice.sort])
    drawn, notes = shown[:most], []
    if late and not choice.late:
        counts = _late_by_class(view, late)
        by_class = ", ".join(f"{name} {n:,}" for name, n in counts.most_common())
        which = "1 request has" if counts.total() == 1 else f"{counts.total():,} requests have"
        notes.append(plain(f"{which} missed a deadline and cannot be in time any more ({by_class})", DIM, 300))
    if choice.filter:
        notes.append(plain(f"filter {choice.filter!r}: {len(shown)} of {len(rows)}", DIM, 300))
    if len(shown) > most:
        notes.append(Text(f"{len(shown) - most} more rows", DIM))
    # The counts come first: a terminal that is too low cuts what is last.
    return Group(*notes, *([_table(view, drawn, is_narrow)] if drawn else []))


def _late_by_class(view: View, drawn: Sequence[Row]) -> Counter[str]:
    """Return how many requests of each class have missed a deadline, also the ones that are not drawn."""
    found = Counter(str(row["class"]) for row in drawn)
    return found | Counter({str(name): one.get("missed", 0) for name, one in view["by_class"].items()})


def _told(view: View, key: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with what is said of it."""
    left_s = None if row["due_s"] is None else row["due_s"] - view["at_s"]
    phase = str(view["phases"][row["phase"]])
    is_lost = bool(row.get("missed", left_s is not None and left_s < 0.0))
    names = {"key": key, "class": str(view["classes"][row["class_id"]]), "phase": phase_in_words(view, row["phase"])}
    held = {"is_held": phase in _HELD, "waits": phase in _WAITS and not is_lost, "is_lost": is_lost}
    return {**row, **names, **held, "left_s": left_s, "why": _why(view, row, phase)}


def _why(view: View, row: Row, phase: str) -> str:
    """Return why a request waits, or what is done for it."""
    if row["why"]:
        return reason(view, (row["why"], row["figure"], row["of"]))
    if phase == "decode":
        return f"{figure(row['output_tokens'])} tokens are out"
    if phase == "prefill":
        done = min(row["computed_tokens"], row["prompt_tokens"])
        return f"{figure(done)} of {figure(row['prompt_tokens'])} prompt tokens are computed"
    return "the next step admits it" if row["ahead"] >= 0 else ""


def _has(row: Row, text: str) -> bool:
    return any(text.lower() in str(row[name]).lower() for name in ("key", "class", "phase", "why"))


def _table(view: View, rows: Sequence[Row], is_narrow: bool) -> RenderableType:
    due_name, dues = due_column("due in", [row["left_s"] for row in rows])
    dues = [
        Text(due.plain.replace("late", "behind"), HELD_UP) if _is_behind(row) else due
        for due, row in zip(dues, rows, strict=True)
    ]
    unit, since = in_one_unit([max(view["at_s"] - row["since_s"], 0.0) for row in rows])
    figures = (due_name,) if is_narrow else (f"for, {unit}", due_name, "prompt", "output", "ahead")
    found = table(("request", "class", "phase"), figures)
    found.add_column("why")
    for row, due, for_s in zip(rows, dues, since, strict=True):
        ahead = figure(row["ahead"]) if row["ahead"] >= 0 else ""
        counts = figure(row["prompt_tokens"]), figure(row["output_tokens"])
        found.add_row(
            plain(row["key"]),
            plain(row["class"], most_chars=CLASS_CHARS) if is_narrow else plain(row["class"]),
            Text(row["phase"], HELD_UP if row["is_held"] else ""),
            *((due,) if is_narrow else (for_s, due, *counts, ahead)),
            row["why"],
        )
    return found
