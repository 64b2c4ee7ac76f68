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
from typing import Any, NamedTuple

from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import JsonSchema, titled
from sloserve.core.files.kinds import reading
from sloserve.core.files.marked_yaml import Node, load_yaml
from sloserve.core.promises import LEAST_LEVEL, MOST_LEVEL, PromiseWish
from sloserve.core.slo import MAX_TARGET_S, MAX_TDS, SLOClass, Targets
from sloserve.core.speeds import SPEEDS
from sloserve.sim.workloads.slo_assignment import ClassRule, ScaledDeadline, SLOAssignment

TOP_KEYS = ("classes", "by_task", "default")
SHARE_TOLERANCE = 1e-6
MAX_TARGET_MS = MAX_TARGET_S * 1000.0
MAX_E2E_SCALE = 1000.0
MAX_RANK = 1000


class _Number(NamedTuple):
    """A number of a class; ``meaning`` explains it to authors of SLO files, ``above`` excludes the bound ``low``."""

    meaning: str
    high: float
    low: float = 0.0
    above: bool = True

    def read(self, node: Node) -> float:
        return node.number(self.low, self.high, above=self.above)

    @property
    def schema(self) -> JsonSchema:
        least = "exclusiveMinimum" if self.above else "minimum"
        return {"description": self.meaning, "type": "number", least: self.low, "maximum": self.high}


_CLASS = {
    "share": _Number("share of the requests; all shares sum to 1", 1.0, above=False),
    "ttft_ms": _Number("target of the time to first token, in ms", MAX_TARGET_MS),
    "tpot_ms": _Number("target of the time per output token, in ms", MAX_TARGET_MS),
    "e2e_ms": _Number("target of the end-to-end latency, in ms", MAX_TARGET_MS),
    "tds": _Number("tokens per second; reading or voice draws a speed for each request", MAX_TDS),
    "scale": _Number("e2e target = scale * (prompt_ms + token_ms * output tokens)", MAX_E2E_SCALE),
    "prompt_ms": _Number("latency of a prompt in ms, with scale", MAX_TARGET_MS),
    "token_ms": _Number("latency of a token in ms, with scale", MAX_TARGET_MS),
    "rank": _Number("lower is more urgent; default: the order of the file", MAX_RANK, above=False),
    "promise": _Number(
        "probability of the promise that requests ask for; they are served without it where it cannot be given",
        MOST_LEVEL,
        LEAST_LEVEL,
        above=False,
    ),
    "aged_after_s": _Number("seconds of waiting after which a request counts as aged", MAX_TARGET_S),
}
_SCALED = ("scale", "prompt_ms", "token_ms")


def slo_file_schema() -> JsonSchema:
    """Return the JSON schema of an SLO file, for editors."""
    numbers: dict[str, Any] = {key: number.schema for key, number in _CLASS.items()}
    numbers["rank"]["type"] = "integer"
    speeds = {"enum": list(SPEEDS)}
    numbers["tds"] = {"description": numbers["tds"].pop("description"), "anyOf": [numbers["tds"], speeds]}
    return titled(
        "SLO file of sloserve",
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["classes"],
            "properties": {
                "classes": {
                    "description": "a mapping of at least one class name to its targets",
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": numbers,
                        "dependencies": {key: list(_SCALED) for key in _SCALED},
                    },
                },
                "by_task": {
                    "description": "class by task of the trace, before any share",
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                },
                "default": {"description": "class where no task and no share decides", "type": "string"},
            },
        },
    )


def read_slo_file(path: str | Path) -> SLOAssignment:
    """Return the classes and their assignment in the file at ``path``.

    Raises: ConfigError for a file that cannot be read, or a key or value that is not allowed.
    """
    with reading("slo", Path(path)):
        return parse_slos(load_yaml(Path(path)), str(path))


def parse_slos(root: Node, source: str) -> SLOAssignment:
    """Return the assignment that the mapping ``root`` describes; ``source`` names it in messages.

    The mapping is a node of :func:`~sloserve.core.files.marked_yaml.parse_yaml`.

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
    keys = node.mapping(tuple(_CLASS))
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
    age_s, level = _number(keys, "aged_after_s"), _number(keys, "promise")
    promise = None if level is None else PromiseWish(level, falls_back=True)
    return ClassRule(
        slo_class=SLOClass(name, rank, targets, default_age_s if age_s is None else age_s, promise),
        share=_number(keys, "share"),
        speeds=speeds,
        deadline=_deadline(node, keys),
    )


def _rank(node: Node) -> int:
    rank = _CLASS["rank"].read(node)
    if rank != int(rank):
        raise node.not_allowed(f"a whole number from 0 to {MAX_RANK}")
    return int(rank)


def _number(keys: dict[str, Node], key: str) -> float | None:
    return _CLASS[key].read(keys[key]) if key in keys else None


def _milliseconds(keys: dict[str, Node], key: str) -> float | None:
    number = _number(keys, key)
    return None if number is None else number / 1000.0


def _tds(node: Node) -> float:
    try:
        return _CLASS["tds"].read(node)
    except ConfigError:
        raise node.not_allowed(f"a number above 0, up to {MAX_TDS:g}, or one of {', '.join(SPEEDS)}") from None


def _deadline(node: Node, keys: dict[str, Node]) -> ScaledDeadline | None:
    given = [key for key in _SCALED if key in keys]
    if not given:
        return None
    if given != list(_SCALED):
        raise node.fail(f"has {' and '.join(given)} only; scale, prompt_ms and token_ms come together")
    if "e2e_ms" in keys:
        raise keys["e2e_ms"].fail("contradicts scale; give one of them")
    scale, prompt_s, token_s = _number(keys, "scale"), _milliseconds(keys, "prompt_ms"), _milliseconds(keys, "token_ms")
    assert scale is not None and prompt_s is not None and token_s is not None
    return ScaledDeadline(scale, prompt_s, token_s)
