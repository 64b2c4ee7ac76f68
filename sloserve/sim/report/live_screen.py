"""One view of a live feed as a screen of a terminal: a server's requests and why they wait, or a fleet's instances."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sloserve.core.in_words import duration, figure, in_one_unit
from sloserve.sim.report.live_fleet import fleet
from sloserve.sim.report.live_requests import ShownRows, phase_in_words, reason, requests
from sloserve.sim.report.live_text import (
    BAD,
    CLASS_CHARS,
    DIM,
    HELD_UP,
    MOST_CHARS,
    View,
    count,
    due_column,
    plain,
    table,
)

_PHASES: Final = ("waiting", "prefill", "decode", "paused", "preempted")
_LATENCIES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e"}
_LOOKS: Final = {"bad": BAD, "late": HELD_UP, "fine": ""}
"""The style of a class by the state of its own requests."""
_MOST_SAID: Final = 400
"""The most characters of a sentence."""
_WIDE: Final = 100
"""The width in characters from which a terminal has room for every column."""
_BAR: Final = 30
_MOST_TASKS: Final = 5
"""The most tasks on a screen, which has to have room for requests as well."""
_LOAD: Final = {
    "requests_per_s": "{} requests ended/s",
    "refused_per_s": "{} refused/s",
    "output_tokens_per_s": "{} output tokens/s",
    "prompt_tokens_per_s": "{} prompt tokens/s",
    "running": "{} running",
    "waiting": "{} queued",
    "prefix_hit_share": "prefix hits {:.0%}",
    "accepted_share": "drafts accepted {:.0%}",
    "step_s": "a step takes {} ms",
    "gpu_busy": "GPU {:.0%}",
    "power_w": "{} W",
    "joules_per_good": "{} J per good request",
}
"""Figures of the load and how they are said; one that is not known is left out."""


def screen(view: View, most_rows: int, width: int, choice: ShownRows | None = None) -> RenderableType:
    """Return the whole screen; what is late or lost comes first.

    Args:
        view: The view of a server or of a fleet.
        most_rows: Most rows of requests or instances.
        width: Width of the terminal in characters; a narrow one keeps of each request the columns that say why it
            waits.
        choice: What is shown of the requests; ``None`` for the usual.
    """
    parts = (
        fleet(view, most_rows)
        if view.get("fleet")
        else _server(view, most_rows, choice or ShownRows(), narrow=is_narrow(width))
    )
    return Group(*_headlines(view), *_load(view), *parts)


def _headlines(view: View) -> Iterable[Text]:
    """Return the lines on what is late or lost, why, and what to do; only what does badly by itself is red."""
    said = view["headlines"]
    alarms, advice = view.get("alarms") or [True] * len(said), view.get("advice") or [None] * len(said)
    for text, alarm, step in zip(said, alarms, advice, strict=True):
        yield plain(text, BAD if alarm else HELD_UP, _MOST_SAID)
        if step:
            yield Text.assemble(("next step: ", "bold"), plain(step, most_chars=_MOST_SAID))
    if not said and view.get("calm"):  # a server of an older version states none
        yield plain(view["calm"], DIM, _MOST_SAID)


def _load(view: View) -> Iterable[Text]:
    """Return the line on the server's load."""
    load = view.get("load")
    if not load:
        return
    scaled = {**load, "step_s": None if load.get("step_s") is None else load["step_s"] * 1e3}
    known = {name: scaled.get(name) for name in _LOAD}
    said = (
        _LOAD[name].format(value if "%" in _LOAD[name] else _brief(value))
        for name, value in known.items()
        if value is not None and (value or name != "refused_per_s")
    )
    yield Text(", ".join(said), DIM)


def _brief(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else figure(value)


def is_narrow(width: int) -> bool:
    """Return whether a terminal of ``width`` characters has no room for every column."""
    return width < _WIDE


def _server(view: View, most_rows: int, choice: ShownRows, *, narrow: bool) -> Iterable[RenderableType]:
    title = Text.assemble(("sloserve  ", "bold"), plain(view["model"]))
    if view.get("server"):
        server = view["server"]
        versions = f"  sloserve {server['version']}, vLLM {server['vllm']}"
        title.append_text(plain(f"{versions}, up {duration(view['at_s'] - server['started_s'])}", DIM))
    most_chars = CLASS_CHARS if narrow else MOST_CHARS
    yield title
    yield from _engines(view)
    # How the classes fare, and beside it, or below it on a narrow screen, what their requests do.
    yield Columns([_how_they_fare(view, most_chars), _what_they_do(view, most_chars)], padding=(0, 3))
    yield Text("met: requests that met all targets; TTFT, TPOT and e2e: median, 99th percentile of a minute", DIM)
    # What follows is cut on a terminal that is too low, so what an operator needs least comes last.
    yield Text()
    yield requests(view, most_rows, choice, is_narrow=narrow)
    yield from (*_tenants(view, most_chars), *_tasks(view, most_chars))
    yield from _promises(view, most_chars)


def _engines(view: View) -> Iterable[RenderableType]:
    for engine in view["engines"]:
        line = Text.assemble(f"rank {engine['rank']}  policy ", plain(engine["policy"], "bold"))
        if engine["plans_off"]:
            line.append(" (plans off: ").append_text(plain(engine["plans_off"])).append(")")
        if engine["plan_s"] is not None:
            line.append(f"  a plan takes {engine['plan_s'] * 1e3:.1f} ms")
        if engine["shadow_policy"]:
            line.append("  shadow ").append_text(plain(engine["shadow_policy"])).append(
                _verdict(engine["shadow"] or {})
            )
        yield line
        if engine.get("policy_change"):
            change = engine["policy_change"]
            ago = duration(view["at_s"] - change["at_s"])
            by = f" by {change['by']}" if change["by"] else ""
            yield plain(f"the policy was changed from {change['before']} {ago} ago{by}", DIM, _MOST_SAID)
        if engine["kv"]:
            yield _kv(engine["kv"], view["near"])
        held_up = reason(view, engine["held_up"])
        if engine["held_up"][0] and not any(held_up in said for said in view["headlines"]):
            yield Text("the first in the queue waits: " + held_up, HELD_UP)
        if engine["drawn"] < engine["live"]:
            yield Text(f"{engine['drawn']:,} of {engine['live']:,} requests are drawn", DIM)


def _verdict(shadow: Mapping[str, Any]) -> str:
    """Return what is known of a shadow policy, in words."""
    agreement, gain = shadow.get("agreement"), shadow.get("gain")
    alike = "" if agreement is None else f" decides alike in {agreement:.0%} of the cases"
    if gain is None:
        return alike
    points = round(abs(gain) * 100)
    return f"{alike}, " + (
        f"{points} points {'more' if gain >= 0 else 'fewer'} in time" if points else "as many in time"
    )


def _kv(kv: Mapping[str, Any], near: Sequence[int]) -> Text:
    used, total = kv["used"], max(kv["total"], 1)
    filled = round(_BAR * used / total)
    line = Text.assemble("KV cache ", ("█" * filled, "cyan"), ("░" * (_BAR - filled), DIM), f" {used / total:.0%}")
    if kv["foreseen"]:
        mean, sigma = kv["foreseen"]["mean"][-1] / total, kv["foreseen"]["sigma"][-1] / total
        line.append(f"; running requests hold {mean:.0%} ± {sigma:.0%} in {near[-1]} steps")
    return line


def _how_they_fare(view: View, most_chars: int) -> Table:
    classes = view["by_class"]
    # Where no request of a class is late, the next deadline is never in the past: its request has just been served, or
    # is about to be counted as late.
    left_s = [None if one["next_due_s"] is None else one["next_due_s"] - view["at_s"] for one in classes.values()]
    lefts = [
        max(left, 0.0) if left is not None and not one["late"] else left
        for left, one in zip(left_s, classes.values(), strict=True)
    ]
    due_name, dues = due_column("due", lefts)
    latencies = [latency(name, [one["latency_s"][name] for one in classes.values()]) for name in _LATENCIES]
    names = "met 1m", "10m", "late", due_name, *(heading for heading, _ in latencies)
    found = table(("class",), names)
    for at, (name, one) in enumerate(classes.items()):
        look = _LOOKS[one["state"]]
        minute, *longer = _shares(one["attained"])
        found.add_row(
            plain(name, look, most_chars),
            Text(minute, look if one["state"] == "bad" else ""),
            *longer,
            count(max(one["late"], one.get("missed", 0)), look or HELD_UP),
            dues[at],
            *(cells[at] for _, cells in latencies),
        )
    return found


def _promises(view: View, most_chars: int) -> Iterable[Text]:
    """Return a line for each class with promises, and one on its predictions that are off their bands."""
    for name, one in view["by_class"].items():
        promises = one.get("promises")  # an older server and a fleet have none
        if promises:
            line = Text.assemble("promises to ", plain(name, most_chars=most_chars))
            line.append(
                f": {promises['kept']:,} kept, {promises['broken']:,} broken, {promises['withdrawn']:,} withdrawn"
            )
            if promises["broken_share"] is not None:
                share = f"; {promises['broken_share']:.1%} broken, {promises['allowed_share']:.1%} allowed"
                line.append(share, BAD if promises["off"] else DIM)
            yield line
        off = [said for key, heading in _LATENCIES.items() for said in _off_band(view, heading, one, key)]
        if off:
            line = Text.assemble("predictions for ", plain(name, most_chars=most_chars), " are off: ", style=HELD_UP)
            yield line.append(", ".join(off))


def _off_band(view: View, heading: str, of_class: Mapping[str, Any], key: str) -> Iterable[str]:
    """Return the share within that predicted quantile of one latency that lies farthest outside its band, in words."""
    found = (of_class.get("predicted") or {}).get(key)
    if found is None or not any(found["off"]):
        return
    off = [
        (abs(share - level) / max(band, 1e-9), share, level)
        for share, level, band, is_off in zip(found["within"], view["levels"], found["band"], found["off"], strict=True)
        if is_off
    ]
    _, share, level = max(off)
    yield f"{heading} ({share:.1%} within p{100 * level:g})"


def latency(name: str, quantiles_s: Sequence[Sequence[float] | None]) -> tuple[str, list[str]]:
    """Return the heading and the cells of one latency: its median and 99th percentile, all in one unit."""
    unit, texts = in_one_unit([one for pair in quantiles_s for one in (pair or (None, None))])
    pairs = zip(texts[0::2], texts[1::2], strict=True)
    return f"{_LATENCIES[name]}, {unit}", [", ".join(pair) if pair[0] else "" for pair in pairs]


def _shares(attained: Sequence[Any]) -> Iterable[str]:
    return ("" if ratio is None else f"{ratio:.0%}" for ratio, _ in attained)


def _what_they_do(view: View, most_chars: int) -> Table:
    names = [phase_in_words(view, view["phases"].index(phase)) for phase in _PHASES]
    found = table(("class",), names)
    for name, one in view["by_class"].items():
        counts = {**one, "preempted": one["preempted"] + one["swapped"]}
        found.add_row(plain(name, most_chars=most_chars), *(count(counts[phase]) for phase in _PHASES))
    return found


def _tenants(view: View, most_chars: int) -> Iterable[RenderableType]:
    """Return the table of tenants; none where tenants have no shares, or only one is known."""
    if not view.get("tenants"):  # an older server has no such part
        return
    unit, debts = in_one_unit([one["debt_s"] for one in view["tenants"]])
    names = "met 1m", "10m", "weight", "running", "waiting", "service", "share", f"debt, {unit}"
    found = table(("tenant",), names)
    for one, debt in zip(view["tenants"], debts, strict=True):
        minute, *longer = _shares(one["attained"])
        found.add_row(
            plain(one["name"], most_chars=most_chars),
            Text(minute, BAD if one["state"] == "bad" else ""),
            *longer,
            f"{one['weight']:g}",
            *(count(one[phase]) for phase in ("running", "waiting")),
            f"{one['served']:.0%}",
            f"{one['fair']:.0%}",
            f"{'+' if one['debt_s'] > 0 else ''}{debt}",
        )
    yield Text()
    yield found
    if view["more_tenants"]:
        yield Text(f"{view['more_tenants']} more tenants", DIM)


def _tasks(view: View, most_chars: int) -> Iterable[RenderableType]:
    """Return the table of open tasks, the one that is due first at the top; none without open tasks."""
    if not view.get("tasks"):  # an older server has no such part
        return
    tasks = view["tasks"][:_MOST_TASKS]
    since_s = [max(view["at_s"] - one["began_s"], 0.0) for one in tasks]
    unit, since = in_one_unit(since_s)
    due_name, dues = due_column(
        "due in",
        [None if one["due_s"] is None or one.get("called") else one["due_s"] - view["at_s"] for one in tasks],
    )
    engine_unit, engine = in_one_unit([one.get("engine_s", 0.0) for one in tasks])
    found = table(("task", "class"), (due_name, "calls", "open", f"for, {unit}", "tools", f"engine, {engine_unit}"))
    for at, one in enumerate(tasks):
        expected = "" if one["expected"] is None else f" of {one['expected']}"
        found.add_row(
            plain(one["name"], most_chars=CLASS_CHARS),
            plain(one["class"], most_chars=most_chars),
            Text("called", DIM) if one.get("called") else dues[at],
            f"{one['calls']}{expected}",
            count(one["open"]),
            since[at],
            f"{min(one['tools_s'] / since_s[at], 1.0):.0%}" if since_s[at] else "",
            engine[at],
        )
    yield Text()
    yield found
    left_out = view["open_tasks"] - len(tasks)
    if left_out > 0:
        yield Text(f"{left_out} more tasks", DIM)
