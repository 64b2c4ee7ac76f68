"""SLO files: YAML that says which classes a workload has, what each asks for, and which request belongs to which.

    classes:
      chat:  {share: 0.7, ttft_ms: 500, tds: reading}  # tds: tokens/s, or reading | voice: drawn for each request
      batch: {share: 0.3, e2e_ms: 30000, rank: 5, aged_after_s: 600}
      econo: {scale: 2, prompt_ms: 50, token_ms: 24} # e2e = scale * (prompt + token * output tokens), EconoServe
    by_task: {summarization: batch}                        # by the trace's task, before any share
    default: chat                                          # of a request that no task and no share decides

Shares sum to 1; a class without one counts 0. Ranks (lower is more urgent) default to the order of the file. Every
fault is one ConfigError that names file, line, column, key, value and what is allowed.
"""

from pathlib import Path

from sloserve.core.errors import ConfigError
from sloserve.core.slo import MAX_TARGET_S, MAX_TDS, SLOClass, Targets
from sloserve.core.speeds import SPEEDS
from sloserve.files.marked_yaml import Node, load_yaml
from sloserve.workloads.slo_assignment import ClassRule, ScaledDeadline, SLOAssignment

TOP_KEYS = ("classes", "by_task", "default")
CLASS_KEYS = (
    "share",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "tds",
    "scale",
    "prompt_ms",
    "token_ms",
    "rank",
    "aged_after_s",
)
SHARE_TOLERANCE = 1e-6
MAX_TARGET_MS = MAX_TARGET_S * 1000.0
MAX_E2E_SCALE = 1000.0
MAX_RANK = 1000


def read_slo_file(path: str | Path) -> SLOAssignment:
    """The classes and their assignment in the file at ``path``.

    Raises: ConfigError for a file that cannot be read, or a key or value that is not allowed.
    """
    root = load_yaml(Path(path))
    return parse_slos(root, str(path))


def parse_slos(root: Node, source: str) -> SLOAssignment:
    """The assignment that the mapping ``root`` of :func:`~sloserve.files.marked_yaml.parse_yaml` describes.

    Raises: ConfigError for a key or value that is not allowed.
    """
    top = root.mapping(TOP_KEYS)
    nodes = top["classes"].mapping() if "classes" in top else {}
    if not nodes:
        raise top.get("classes", root).fail("no classes; an SLO file has at least one, under classes")
    rules = tuple(_class(name, node, rank) for rank, (name, node) in enumerate(nodes.items()))
    by_task = top["by_task"].mapping() if "by_task" in top else {}
    tasks = {task: _class_name(node, nodes) for task, node in by_task.items()}
    shared = _check_shares(top["classes"], rules)
    default = _class_name(top["default"], nodes) if "default" in top else None
    if default is None and len(rules) == 1:
        default = rules[0].slo_class.name
    if not (tasks or shared or default):
        raise top["classes"].fail("no request would get any of them; give shares, by_task or a default")
    return SLOAssignment(source, rules, tasks, default)


def _class_name(node: Node, classes: dict[str, Node]) -> str:
    if node.value not in list(classes):
        raise node.not_allowed(f"one of the classes {', '.join(classes)}")
    return str(node.value)


def _check_shares(node: Node, rules: tuple[ClassRule, ...]) -> bool:
    shares = [rule.share for rule in rules if rule.share is not None]
    if shares and abs(sum(shares) - 1.0) > SHARE_TOLERANCE:
        stated = ", ".join(f"{rule.slo_class.name} {rule.share or 0:g}" for rule in rules)
        raise node.fail(f"shares sum to {sum(shares):g}, not 1 ({stated})")
    return bool(shares)


def _class(name: str, node: Node, rank: int) -> ClassRule:
    keys = node.mapping(CLASS_KEYS)
    tds = keys.get("tds")
    speeds = SPEEDS.get(tds.value) if tds is not None and isinstance(tds.value, str) else None
    if "rank" in keys:
        rank = _rank(keys["rank"])
    targets = Targets(
        ttft_s=_milliseconds(keys, "ttft_ms"),
        tpot_s=_milliseconds(keys, "tpot_ms"),
        e2e_s=_milliseconds(keys, "e2e_ms"),
        tds=_tds(tds) if tds is not None and speeds is None else None,
    )
    default_age_s = SLOClass(name, rank).aged_after_s
    age_s = keys["aged_after_s"].number(0.0, MAX_TARGET_S, above=True) if "aged_after_s" in keys else default_age_s
    return ClassRule(
        slo_class=SLOClass(name, rank, targets, age_s),
        share=keys["share"].number(0.0, 1.0) if "share" in keys else None,
        speeds=speeds,
        deadline=_deadline(node, keys),
    )


def _rank(node: Node) -> int:
    rank = node.number(0, MAX_RANK)
    if rank != int(rank):
        raise node.not_allowed(f"a whole number from 0 to {MAX_RANK}")
    return int(rank)


def _milliseconds(keys: dict[str, Node], key: str) -> float | None:
    return keys[key].number(0.0, MAX_TARGET_MS, above=True) / 1000.0 if key in keys else None


def _tds(node: Node) -> float:
    try:
        return node.number(0.0, MAX_TDS, above=True)
    except ConfigError:
        raise node.not_allowed(f"a number above 0, up to {MAX_TDS:g}, or one of {', '.join(SPEEDS)}") from None


def _deadline(node: Node, keys: dict[str, Node]) -> ScaledDeadline | None:
    given = [key for key in ("scale", "prompt_ms", "token_ms") if key in keys]
    if not given:
        return None
    if len(given) < 3:
        raise node.fail(f"has {' and '.join(given)} only; scale, prompt_ms and token_ms come together")
    if "e2e_ms" in keys:
        raise keys["e2e_ms"].fail("contradicts scale; give one of them")
    prompt_s, token_s = _milliseconds(keys, "prompt_ms"), _milliseconds(keys, "token_ms")
    assert prompt_s is not None and token_s is not None
    return ScaledDeadline(keys["scale"].number(0.0, MAX_E2E_SCALE, above=True), prompt_s, token_s)
