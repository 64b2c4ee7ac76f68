"""One view of a gateway's live feed as a screen of a terminal."""

from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sloserve.core.in_words import duration, in_one_unit
from sloserve.sim.report.live_text import BAD, DIM, HELD_UP, View, columns, count, due_column, plain, table

STATES: Final = {
    "empty": "no model", "serving": "serving", "draining": "ending its streams", "swapping": "switching models",
    "failed": "failed", "lost": "silent", "active": "served", "coming": "on its way", "warm": "in host memory",
    "cold": "on disk", "unavailable": "on no instance",
}  # fmt: skip
"""States of instances and models in words, as clients/page/src/states.ts has them; a test compares them."""


def fleet(view: View, most_rows: int) -> Iterable[RenderableType]:
    """Yield the parts of the screen below the headlines."""
    plan = view["plan"]
    head = Text.assemble(
        ("sloserve fleet  ", "bold"), f"{view['counts']['instances']} instances, {view['held']} requests held"
    )
    if plan is not None:
        head.append(f", the plan expects {duration(plan['late_s']) or '0 s'} of lateness")
    yield head
    yield from (_groups(view), Text(), _met(view), Text(), _instances(view, most_rows), *_switches(view))


def _met(view: View) -> Table:
    """Return the shares of the requests that met all targets, by class."""
    found = table(("class",), ("met 1m", "10m"))
    for name, one in view["by_class"].items():
        look = BAD if one.get("state") == "bad" else ""
        found.add_row(plain(name, look), *("" if share is None else f"{share:.0%}" for share, _ in one["attained"]))
    return found


def _groups(view: View) -> Table:
    groups = view["groups"]
    unit, oldest = in_one_unit([one["oldest_s"] if one["held"] else None for one in groups])
    due_name, dues = due_column("first due in", [one["first_due_in_s"] for one in groups])
    found = table(("model", "class", "the model is"), ("held", f"oldest, {unit}", due_name, "requests/s"))
    for one, old, due in zip(groups, oldest, dues, strict=True):
        state = view["models"].get(one["model"], {}).get("state", "")
        names = plain(one["model"]), plain(one["class"]), plain(STATES.get(state, state))
        found.add_row(*names, count(one["held"], HELD_UP), old, due, f"{one['rate_per_s']:.1f}")
    return found


def _instances(view: View, most: int) -> RenderableType:
    rows = columns(view)[:most]
    unit, since = in_one_unit([max(view["at_s"] - row["since_s"], 0.0) for _, row in rows])
    ready_unit, ready = in_one_unit([row["ready_in_s"] or None for _, row in rows])
    names = f"for, {unit}", f"ready in, {ready_unit}", "running", "room", "parked"
    found = table(("instance", "state", "model"), names)
    for (key, row), for_s, ready_s in zip(rows, since, ready, strict=True):
        phase = str(row["phase"])
        look = BAD if phase in ("lost", "failed") else "" if phase == "serving" else HELD_UP
        found.add_row(
            plain(key),
            plain(STATES.get(phase, phase), look),
            plain(row["model"] or ""),
            for_s,
            ready_s,
            *(count(row[name]) for name in ("running", "room", "parked")),
        )
    left_out = view["counts"]["instances"] - len(rows)
    return Group(found, Text(f"{left_out} more instances", DIM)) if left_out > 0 else found


def _switches(view: View) -> Iterable[RenderableType]:
    for one in view["switches"][-3:]:
        yield Text.assemble(
            plain(one["instance"]), ": ", plain(one["leaving"] or "nothing"), " → ", plain(one["coming"]),
            f" in {duration(one['seconds'])}, {duration(view['at_s'] - one['at_s'])} ago",
        )  # fmt: skip
