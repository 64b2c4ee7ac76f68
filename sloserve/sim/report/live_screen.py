"""One view of a live feed as a screen of a terminal: a server's requests and why they wait, or a fleet's instances.

Others chose the names in a view. It is shown as plain text without control characters, so that no name of a model or
class can colour, move or clear anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sloserve.core.in_words import due, duration
from sloserve.engine.why import sentence

View = Mapping[str, Any]

_PHASES: Final = ("waiting", "prefill", "decode", "paused", "preempted")
_LATENCIES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e"}
_HELD: Final = frozenset({"waiting", "paused", "preempted", "swapped"})
_LATE, _HELD_UP, _DIM = "bold red", "yellow", "dim"
_LOOKS: Final = {"bad": _LATE, "late": _HELD_UP, "fine": ""}
"""The style of a class by the state of its own requests."""
_MOST_CHARS: Final = 60
_MOST_SAID: Final = 300
"""The most characters of a sentence."""
_WIDE: Final = 100
"""The width in characters from which a terminal has room for every column."""
_CLASS_CHARS: Final = 12
"""The most characters of a class's name on a narrower terminal; a longer name would take the room of the figures."""
_BAR: Final = 30
_MOST_TASKS: Final = 5
"""The most tasks on a screen, which has to have room for requests as well."""


def screen(view: View, most_rows: int, width: int) -> RenderableType:
    """Return the whole screen; what is late or lost comes first.

    Args:
        view: The view of a server or of a fleet.
        most_rows: Most rows of requests or instances.
        width: Width of the terminal in characters; a narrow one keeps of each request the columns that say why it
            waits.
    """
    return _fleet(view, most_rows) if view.get("fleet") else _server(view, most_rows, width < _WIDE)


def plain(value: object, style: str = "", most_chars: int = _MOST_CHARS) -> Text:
    """Return any text without control characters, shortened."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value))
    return Text(text if len(text) <= most_chars else text[: most_chars - 1] + "…", style)


def reason(view: View, cause: Sequence[Any]) -> str:
    """Return a cause of the feed, ``[why, figure, of]``, as a sentence."""
    why, figure, of = cause
    return sentence(str(view["says"][why]), figure, of)


def _server(view: View, most_rows: int, is_narrow: bool) -> RenderableType:
    title = Text.assemble(("sloserve  ", "bold"), plain(view["model"]))
    most_chars = _CLASS_CHARS if is_narrow else _MOST_CHARS
    requests = _requests(view, most_rows, is_narrow)
    by_class = _by_class(view, most_chars)
    tenants, tasks = _tenants(view, most_chars), _tasks(view, most_chars)
    return Group(title, *_headlines(view), *_engines(view), by_class, *tenants, *tasks, Text(), requests)


def _engines(view: View) -> Iterable[RenderableType]:
    for engine in view["engines"]:
        line = Text.assemble(f"rank {engine['rank']}  policy ", plain(engine["policy"], "bold"))
        if engine["plans_off"]:
            line.append(" (plans off: ").append_text(plain(engine["plans_off"])).append(")")
        if engine["plan_s"] is not None:
            line.append(f"  a plan takes {engine['plan_s'] * 1e3:.1f} ms")
        if engine["shadow_policy"]:
            line.append("  shadow ").append_text(plain(engine["shadow_policy"]))
            shadow = engine["shadow"] or {}
            if shadow.get("agreement") is not None:
                line.append(f" agrees {shadow['agreement']:.0%}")
            if shadow.get("gain") is not None:
                line.append(f", gain {shadow['gain']:+.2f}")
        yield line
        if engine["kv"]:
            yield _kv(engine["kv"], view["near"])
        held_up = reason(view, engine["held_up"])
        if engine["held_up"][0] and not any(said.endswith(held_up) for said in view["headlines"]):
            yield Text("the first in the queue waits: " + held_up, _HELD_UP)
        if engine["drawn"] < engine["live"]:
            yield Text(f"{engine['drawn']} of {engine['live']} requests are drawn", _DIM)


def _headlines(view: View) -> Iterable[Text]:
    """Return the lines on what is late or lost, and why; only what does badly by itself is red."""
    alarms = view.get("alarms") or [True] * len(view["headlines"])
    looks = (_LATE if alarm else _HELD_UP for alarm in alarms)
    return (plain(said, look, _MOST_SAID) for said, look in zip(view["headlines"], looks, strict=True))


def _kv(kv: Mapping[str, Any], near: Sequence[int]) -> Text:
    used, total = kv["used"], max(kv["total"], 1)
    filled = round(_BAR * used / total)
    line = Text.assemble("KV cache ", ("█" * filled, "cyan"), ("░" * (_BAR - filled), _DIM), f" {used / total:.0%}")
    if kv["foreseen"]:
        mean, sigma = kv["foreseen"]["mean"][-1] / total, kv["foreseen"]["sigma"][-1] / total
        line.append(f"; running requests hold {mean:.0%} ± {sigma:.0%} in {near[-1]} steps")
    return line


def _by_class(view: View, most_chars: int) -> RenderableType:
    """Return how the classes fare, and beside it, or below it on a narrow screen, what their requests do."""
    return Columns([_how_they_fare(view, most_chars), _what_they_do(view, most_chars)], padding=(0, 3))


def _how_they_fare(view: View, most_chars: int) -> Table:
    table = _classes("late", "next due", "met 1m", "10m", *(f"{figure} p50,99" for figure in _LATENCIES.values()))
    for name, one in view["by_class"].items():
        due_s, look = one["next_due_s"], _LOOKS[one["state"]]
        left_s = None if due_s is None else due_s - view["at_s"]
        table.add_row(
            plain(name, look, most_chars),
            Text(str(one["late"]), look if one["late"] else _DIM),
            _next_due(left_s, one["late"], most_chars == _CLASS_CHARS),
            *_shares(one["attained"]),
            *(took(one["latency_s"][figure]) for figure in _LATENCIES),
        )
    return table


def _next_due(left_s: float | None, late: int, is_narrow: bool) -> str:
    """Return how long it is until the first deadline of a class.

    Where no request of the class is late, the next deadline is never in the past: its request has just been served, or
    is about to be counted as late.
    """
    if left_s is None or not late:
        return due(None if left_s is None else max(left_s, 0.0))
    return "passed" if is_narrow and left_s < 0.0 else due(left_s)


def _shares(attained: Sequence[Any]) -> Iterable[str]:
    return ("" if ratio is None else f"{ratio:.0%}" for ratio, _ in attained)


def _what_they_do(view: View, most_chars: int) -> Table:
    table = _classes(*_PHASES)
    for name, one in view["by_class"].items():
        counts = {**one, "preempted": one["preempted"] + one["swapped"]}
        name = plain(name, most_chars=most_chars)
        table.add_row(name, *(Text(str(counts[phase]), "" if counts[phase] else _DIM) for phase in _PHASES))
    return table


def _tenants(view: View, most_chars: int) -> Iterable[RenderableType]:
    """Return the table of tenants; none where tenants have no shares, or only one is known."""
    if not view.get("tenants"):  # an older server has no such part
        return
    names = ("weight", "running", "waiting", "service", "share", "debt", "met 1m", "10m")
    table = _table("tenant", *names)
    for one in view["tenants"]:
        minute, *longer = _shares(one["attained"])
        table.add_row(
            plain(one["name"], most_chars=most_chars),
            f"{one['weight']:g}",
            *(Text(str(one[phase]), "" if one[phase] else _DIM) for phase in ("running", "waiting")),
            f"{one['served']:.0%}",
            f"{one['fair']:.0%}",
            f"{one['debt_s']:+.1f} s",
            Text(minute, _LATE if one["state"] == "bad" else ""),
            *longer,
        )
    yield Text()
    yield table
    if view["more_tenants"]:
        yield Text(f"{view['more_tenants']} more tenants", _DIM)


def _tasks(view: View, most_chars: int) -> Iterable[RenderableType]:
    """Return the table of open tasks, the one that is due first at the top; none without open tasks."""
    if not view.get("tasks"):  # an older server has no such part
        return
    table = _table("task", "class", "calls", "running", "for", "due in", "tools")
    for one in view["tasks"][:_MOST_TASKS]:
        since_s = max(view["at_s"] - one["began_s"], 0.0)
        expected = "" if one["expected"] is None else f" of {one['expected']}"
        table.add_row(
            plain(one["name"], most_chars=_CLASS_CHARS),
            plain(one["class"], most_chars=most_chars),
            f"{one['calls']}{expected}",
            Text(str(one["open"]), "" if one["open"] else _DIM),
            duration(since_s),
            _due(None if one["due_s"] is None else one["due_s"] - view["at_s"]),
            f"{min(one['tools_s'] / since_s, 1.0):.0%}" if since_s else "",
        )
    yield Text()
    yield table
    left_out = view["open_tasks"] - len(view["tasks"][:_MOST_TASKS])
    if left_out > 0:
        yield Text(f"{left_out} more tasks", _DIM)


def _classes(*columns: str) -> Table:
    return _table("class", *columns)


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, header_style=_DIM, pad_edge=False)
    table.add_column(first)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def took(quantiles_s: Sequence[float] | None) -> str:
    """Return quantiles of a latency with two digits, in the unit that suits the longest; empty for none."""
    if quantiles_s is None:
        return ""
    factor, unit = (1e3, "ms") if max(quantiles_s) < 1.0 else (1.0, "s")
    return f"{', '.join(_two_digits(quantile_s * factor) for quantile_s in quantiles_s)} {unit}"


def _two_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:#.2g}"


def _due(left_s: float | None) -> Text:
    return Text(due(left_s), _LATE if left_s is not None and left_s < 0 else "")


def _requests(view: View, most: int, is_narrow: bool) -> RenderableType:
    """Return the table of requests, the nearest deadline first.

    Requests without a deadline come last, the longest in their phase first.
    """
    rows = [(key, dict(zip(view["columns"], row, strict=True))) for key, row in view["rows"].items()]
    rows.sort(key=lambda one: (one[1]["due_s"] is None, one[1]["due_s"] or one[1]["since_s"]))
    table = Table(box=None, header_style=_DIM, pad_edge=False)
    for name in ("request", "class", "phase"):
        table.add_column(name, no_wrap=True)
    for name in ("due in",) if is_narrow else ("for", "due in", "prompt", "output", "ahead"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why")
    for key, row in rows[:most]:
        phase = view["phases"][row["phase"]]
        due = _due(None if row["due_s"] is None else row["due_s"] - view["at_s"])
        since = duration(view["at_s"] - row["since_s"])
        ahead = str(row["ahead"]) if row["ahead"] >= 0 else ""
        name = view["classes"][row["class_id"]]
        table.add_row(
            plain(key),
            plain(name, most_chars=_CLASS_CHARS) if is_narrow else plain(name),
            Text(phase, _HELD_UP if phase in _HELD else ""),
            *((due,) if is_narrow else (since, due, str(row["prompt_tokens"]), str(row["output_tokens"]), ahead)),
            reason(view, (row["why"], row["figure"], row["of"])) if row["why"] else "",
        )
    if not rows:
        return Text("no request is live", _DIM)
    left_out = len(rows) - most
    return Group(table, Text(f"{left_out} more rows", _DIM)) if left_out > 0 else table


def _fleet(view: View, most_rows: int) -> RenderableType:
    plan = view["plan"]
    head = Text.assemble(
        ("sloserve fleet  ", "bold"), f"{view['counts']['instances']} instances, {view['held']} requests held"
    )
    if plan is not None:
        head.append(f", the plan expects {duration(plan['late_s']) or '0 s'} of lateness")
    tables = _groups(view), Text(), _met(view), Text(), _instances(view, most_rows)
    return Group(*_headlines(view), head, *tables, *_switches(view))


def _met(view: View) -> Table:
    """Return the shares of the requests that met all targets, by class."""
    table = _classes("met 1m", "10m")
    for name, one in view["by_class"].items():
        table.add_row(plain(name), *_shares(one["attained"]))
    return table


def _groups(view: View) -> Table:
    table = Table(box=None, header_style=_DIM, pad_edge=False)
    for name in ("model", "class", "state"):
        table.add_column(name)
    for name in ("held", "oldest", "first due in", "requests/s"):
        table.add_column(name, justify="right")
    for one in view["groups"]:
        state = view["models"].get(one["model"], {}).get("state", "")
        held = Text(str(one["held"]), _HELD_UP if one["held"] else _DIM)
        times = duration(one["oldest_s"]) if one["held"] else "", _due(one["first_due_in_s"])
        table.add_row(plain(one["model"]), plain(one["class"]), state, held, *times, f"{one['rate_per_s']:.1f}")
    return table


def _instances(view: View, most: int) -> RenderableType:
    table = Table(box=None, header_style=_DIM, pad_edge=False)
    for name in ("instance", "phase", "model"):
        table.add_column(name)
    for name in ("for", "ready in", "running", "room", "parked"):
        table.add_column(name, justify="right")
    rows = [(key, dict(zip(view["columns"], row, strict=True))) for key, row in view["rows"].items()]
    for key, row in rows[:most]:
        is_lost = row["phase"] in ("lost", "failed")
        table.add_row(
            plain(key),
            Text(row["phase"], _LATE if is_lost else "" if row["phase"] == "serving" else _HELD_UP),
            plain(row["model"] or ""),
            duration(view["at_s"] - row["since_s"]),
            duration(row["ready_in_s"]) if row["ready_in_s"] else "",
            *(str(row[name]) for name in ("running", "room", "parked")),
        )
    left_out = view["counts"]["instances"] - min(len(rows), most)
    return Group(table, Text(f"{left_out} more instances", _DIM)) if left_out > 0 else table


def _switches(view: View) -> Iterable[RenderableType]:
    for one in view["switches"][-3:]:
        yield Text.assemble(
            plain(one["instance"]), ": ", plain(one["leaving"] or "nothing"), " → ", plain(one["coming"]),
            f" in {duration(one['seconds'])}, {duration(view['at_s'] - one['at_s'])} ago",
        )  # fmt: skip
