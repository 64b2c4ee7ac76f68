"""Whether a dashboard's queries are PromQL, and ask for metrics and labels that a scrape has.

What a scrape cannot show is not checked: values of labels that the dashboard's variables fill in, and what Prometheus
or its operator adds to every series (``instance``, ``job``, ``namespace``).
"""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

TARGET_LABELS = frozenset({"instance", "job", "namespace"})
BUILT_IN = {"__rate_interval": "5m", "__interval": "15s", "__range": "1h", "__all": "all"}
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
OF_PROMETHEUS: "Scrape" = {
    "up": {"job": set(), "instance": set()},
    "ALERTS": {"alertname": set(), "alertstate": {"pending", "firing"}, "severity": {"critical", "warning"}},
}
"""Series that Prometheus makes itself, and the labels of our alerts."""
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+),\s*)?(?P<label>\w+)\)")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")

Scrape = dict[str, dict[str, set[str]] | None]
"""Of each sample's name: its labels with the values each has, or ``None`` where the metric is known but has no sample
yet, hence labels that are not known."""


def check_dashboard(dashboard: dict[str, Any], metrics_text: str) -> list[str]:
    """What is wrong with the queries of a Grafana dashboard, one line each; nothing if all can be answered.

    metrics_text: a scrape in Prometheus' text format.
    """
    scrape = read_scrape(metrics_text) | OF_PROMETHEUS
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    problems = []
    for where, query, legend in queries(dashboard):
        undefined = {name for name in _VARIABLE.findall(query) if name not in variables | BUILT_IN.keys()}
        problems += [f"{where}: variable ${name} is not defined" for name in sorted(undefined)]
        try:
            parsed = promql.parse(_VARIABLE.sub(lambda m: BUILT_IN.get(m[1], m[0]), query))
        except ValueError as error:
            problems.append(f"{where}: {query}: {error}")
            continue
        found: list[str] = []
        labels = _labels_of(parsed, scrape, found)
        if labels is not None:
            found += [f"the legend's label {name} is not in the result" for name in set(legend) - labels]
        problems += [f"{where}: {query}: {problem}" for problem in found]
    return problems


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Every query of the dashboard: where it stands, its text, and the labels that it must return."""
    for panel in _panels(dashboard["panels"]):
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"], _LEGEND.findall(target.get("legendFormat", ""))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            asked = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert asked is not None and asked["selector"], f"variable {variable['name']!r} is not label_values(m, l)"
            yield f"variable {variable['name']!r}", asked["selector"], [asked["label"]]


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def read_scrape(text: str) -> Scrape:
    """Which samples a scrape has, also of metrics that are declared but have none yet."""
    scrape: Scrape = {}
    for family in text_string_to_metric_families(text):
        for suffix in SUFFIXES.get(family.type, ("",)):
            scrape.setdefault(family.name + suffix, None)
        for sample in family.samples:
            known = scrape.get(sample.name) or {}
            for label, value in sample.labels.items():
                known.setdefault(label, set()).add(value)
            scrape[sample.name] = known
    return scrape


def _labels_of(expr: Any, scrape: Scrape, problems: list[str]) -> set[str] | None:
    """Labels that the result of ``expr`` can have, ``None`` where they are not known; what is wrong goes to
    ``problems``."""
    match expr:
        case promql.VectorSelector():
            return _selected(expr, scrape, problems)
        case promql.MatrixSelector():
            return _selected(expr.vector_selector, scrape, problems)
        case promql.AggregateExpr():
            inner = _labels_of(expr.expr, scrape, problems)
            if expr.modifier is None:
                # topk, bottomk and quantile-free selections keep their series; the others fold all into one.
                return inner if str(expr.op) in ("topk", "bottomk") else set()
            named = set(expr.modifier.labels)
            if inner is not None:
                problems += [f"{expr.op} by or without {name}, which nothing has" for name in sorted(named - inner)]
            if expr.modifier.type == promql.AggModifierType.By:
                return named
            return None if inner is None else inner - named
        case promql.Call():
            results = [_labels_of(argument, scrape, problems) for argument in expr.args]
            vectors = [labels for labels in results if labels != set()]
            if expr.func.name == "histogram_quantile" and vectors and vectors[0] is not None:
                if "le" not in vectors[0]:
                    problems.append("histogram_quantile of series without le")
                return vectors[0] - {"le"}
            return vectors[0] if vectors else set()
        case promql.BinaryExpr():
            sides = [_labels_of(side, scrape, problems) for side in (expr.lhs, expr.rhs)]
            _check_matching(expr, sides, problems)
            vectors = [labels for labels in sides if labels != set()]
            return vectors[0] if vectors else set()
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            return _labels_of(expr.expr, scrape, problems)
        case _:
            return set()  # a number or a text


def _check_matching(expr: Any, sides: list[set[str] | None], problems: list[str]) -> None:
    """Check that both sides of an operator have the labels by which their series are matched."""
    left, right = sides
    matching = None if expr.modifier is None else expr.modifier.matching
    if left is None or right is None:
        return
    if matching is None:
        if left and right and left != right and str(expr.op) != "or":
            problems.append(f"{expr.op} matches no series, since only one side has {', '.join(sorted(left ^ right))}")
    elif matching.type == promql.LabelModifierType.Include:
        lacking = set(matching.labels) - (left & right)
        problems += [f"{expr.op} on {name}, which one side lacks" for name in sorted(lacking)]


def _selected(selector: Any, scrape: Scrape, problems: list[str]) -> set[str] | None:
    if selector.name not in scrape:
        problems.append(f"no metric {selector.name}")
        return None
    labels = scrape[selector.name]
    if labels is None:
        return None
    for matcher in selector.matchers.matchers:
        if matcher.name not in labels and matcher.name not in TARGET_LABELS:
            problems.append(f"{selector.name} has no label {matcher.name}")
        elif "$" not in matcher.value and labels.get(matcher.name):
            is_text = matcher.op in (promql.MatchOp.Equal, promql.MatchOp.NotEqual)
            for wanted in [re.escape(matcher.value)] if is_text else matcher.value.split("|"):
                if not any(re.fullmatch(wanted, value) for value in labels[matcher.name]):
                    said = matcher.value if is_text else wanted
                    problems.append(f"{selector.name} has no {matcher.name}={said!r}")
    is_recorded = selector.name.count(":") == 2  # of level:metric:operations; its rule has said which labels it keeps
    return set(labels) if is_recorded else labels.keys() | TARGET_LABELS
