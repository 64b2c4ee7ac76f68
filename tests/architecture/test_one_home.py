"""Rules with one home, each a row: how another spelling of it looks, where it may stand, and what to call instead.

Blocks, array types and columns: ``test_each_idea_once.py``; pace: ``tests/lso/test_pace.py``. Which package may import
which is held by the import contracts of ``pyproject.toml``.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURED = r"(?:latency|measured|achieved|served|log)\.(?:ttft_s|tpot_s|e2e_s)\b"


@dataclass(frozen=True, kw_only=True)
class Idea:
    """One rule.

    Args:
        kind: of the nodes that are searched.
        word: matches on a line of every node that is worth a closer look; files without it are not parsed.
        pattern: is searched in a node's source, as ``ast.unparse`` writes it.
        example: a line that the pattern finds.
        instead: what all others call.
        homes: the modules that spell it out, and no others.
        under: the folders that are searched.
    """

    kind: type[ast.AST]
    word: str
    pattern: str
    example: str
    instead: str
    homes: frozenset[str] = frozenset()
    under: tuple[str, ...] = ("sloserve/",)


IDEAS = {
    "a test's engine runs in the test's process only where all that it leaves there is undone": Idea(
        kind=ast.Call,
        word=r"LLMEngine|EngineCore|ProfileEngine",
        pattern=r"^(?:LLMEngine\.from_engine_args|EngineCore|ProfileEngine)\(",
        example="engine = LLMEngine.from_engine_args(EngineArgs(model=model))",
        instead="tests.equality.engine.started, or tests.engine_process.restored_process around it",
        homes=frozenset(
            {
                "tests/equality/engine.py",
                "tests/benchmarks/test_paced_worker.py",
                "tests/vllm_plugin/test_profile_engine.py",
            }
        ),
        under=("tests/",),
    ),
    "a request's SLO is parsed once in the front end and once in the engine": Idea(
        kind=ast.Call,
        word="parse_slo",
        pattern=r"^(?:xargs\.)?parse_slo\(",
        example="slo = parse_slo(extra_args, classes)",
        instead="Resolved.slo in the front end, the columns of the request table in the engine",
        homes=frozenset({"sloserve/wire/resolve.py", "sloserve/engine/read_stated.py"}),
    ),
    "latencies are compared with targets in one place": Idea(
        kind=ast.Compare,
        word=MEASURED,
        pattern=rf"{MEASURED}.*[<>]|[<>].*{MEASURED}",
        example="late = log.latency.ttft_s > slo.targets.ttft_s",
        instead="FinishedRequest.met",
    ),
    "targets_met is for figures that no FinishedRequest holds": Idea(
        kind=ast.Call,
        word="targets_met",
        pattern=r"^(?:finished\.)?targets_met\(",
        example="met = targets_met(slo.targets, latency)",
        instead="FinishedRequest.met",
        homes=frozenset(
            {
                "sloserve/core/finished.py",
                "sloserve/client/client_stats.py",
                "sloserve/client/vllm_record.py",
                "sloserve/sim/recorded_run.py",
            }
        ),
    ),
    "whether a request was good is computed once": Idea(
        kind=ast.Call,
        word=r"met\.values\(\)",
        pattern=r"^all\(.*\bmet\.values\(\)\)$",
        example="good = all(log.met.values())",
        instead="FinishedRequest.good",
        homes=frozenset({"sloserve/core/finished.py"}),
    ),
    "policies have one interface of lengths": Idea(
        kind=ast.ImportFrom,
        word=r"estimator\.length",
        pattern=r"^from sloserve\.estimator\.length(?!\.choice import (PREDICTED_GAUSSIAN, )?check_lengths$)",
        example="from sloserve.estimator.length.empirical import EmpiricalLength",
        instead="sloserve.lso.lengths.Lengths, with the predictor that the option `length` names",
        # Admission, the settings and virtual time are no policies: they take a predictor as it is.
        homes=frozenset(
            {
                "sloserve/lso/lengths.py",
                "sloserve/scheduler/admission/prediction.py",
                "sloserve/scheduler/settings.py",
                "sloserve/engine/virtual/virtual_front_end.py",
            }
        ),
        under=("sloserve/scheduler/", "sloserve/lso/", "sloserve/engine/"),
    ),
    "the deadline that orders a request that is held back is chosen once": Idea(
        kind=ast.IfExp,
        word=r"(?:ttft|e2e)_s if ",
        pattern=r"\b(?P<one>ttft_s|e2e_s) if .*\b(?:ttft_s|e2e_s) is not None else .*\b(?!(?P=one))(?:ttft_s|e2e_s)$",
        example="due_s = t.ttft_s if t.ttft_s is not None else t.e2e_s",
        instead="Targets.next_s",
    ),
    "the length of a reply that nobody knows is one figure": Idea(
        kind=ast.AnnAssign,
        word="USUAL|PRIOR_(?:MEAN_)?TOKENS",
        pattern=r"^_?(?:USUAL|PRIOR)_(?:OUTPUT_|MEAN_)?TOKENS: Final = ",
        example="_USUAL_OUTPUT_TOKENS: Final = 200.0",
        instead="sizes.USUAL_OUTPUT_TOKENS, which is the prior of the estimators",
        homes=frozenset({"sloserve/fleet/sizes.py", "sloserve/estimator/length/remaining.py"}),
    ),
    "how many requests an instance takes beyond what it runs is said once": Idea(
        kind=ast.BinOp,
        word="max_num_seqs",
        pattern=r"^(?:[\d.]+|[\w.]*(?:queued|streams|seats|QUEUED|STREAMS|SEATS)) \* [\w.]*max_num_seqs$",
        example="room = 1.25 * engine.max_num_seqs",
        instead="contract.engine_places.EnginePlaces",
        homes=frozenset({"sloserve/fleet/contract/engine_places.py"}),
        under=("sloserve/fleet/", "sloserve/fleet/simulated/"),
    ),
    "on-demand, collate and edf are told apart once": Idea(
        kind=ast.FunctionDef,
        word="def may_take",
        pattern=r"^def may_take\(",
        example="def may_take(self, head, instance, view, is_active): return not is_active",
        instead="planner_rule.Rule",
        homes=frozenset({"sloserve/fleet/planner_rule.py"}),
    ),
    "what of a prompt an instance should have cached is counted by the gateway's table": Idea(
        kind=ast.ClassDef,
        word=r"class \w*Prefix\w*",
        pattern=r"^class \w*(?:SentPrefixes|PrefixTable)\b",
        example="class SentPrefixes: pass",
        instead="gateway.prefixes.PrefixTable, through Instances.choose",
        homes=frozenset({"sloserve/fleet/gateway/prefixes.py"}),
        under=("sloserve/fleet/", "sloserve/sim/"),
    ),
    "a gateway chooses an instance, and holds a request, in one way": Idea(
        kind=ast.Call,
        word=r"\.choose\(",
        pattern=r"^self\._instances\.choose\(",
        example="self._instances.choose(model, slo_class, work, prompt, now_s)",
        instead="gateway.held.HeldRequests",
        homes=frozenset({"sloserve/fleet/gateway/held.py"}),
    ),
    "headers of one connection are listed once": Idea(
        kind=ast.Constant,
        word="keep-alive",
        pattern="keep-alive",
        example="kept = 'connection keep-alive'.split()",
        instead="wire.headers.HOP_BY_HOP",
        homes=frozenset({"sloserve/wire/headers.py"}),
    ),
    "fields of a chunk that hold text are listed once": Idea(
        kind=ast.Constant,
        word="reasoning_content",
        pattern=r"^'reasoning_content'$",
        example="keys = ('content', 'reasoning_content')",
        instead="client.pieces.has_text",
        homes=frozenset({"sloserve/client/pieces.py"}),
    ),
    "events of a stream are counted in one place": Idea(
        kind=ast.Call,
        word=r"\.count\(",
        pattern=r"(?i)\.count\(.*(?:data:|event)",
        example=r"events = part.count(b'\ndata:')",
        instead="wire.event_stream.EventCounter",
    ),
    "lines that others wrote are split at line feeds alone": Idea(
        kind=ast.Call,
        word=r"splitlines|iter_lines",
        pattern=r"\.(?:splitlines|a?iter_lines)\(",
        example="rows = [json.loads(line) for line in text.splitlines()]",
        instead="core.json_lines.lines_of; client.responses for events of a stream",
        homes=frozenset({"sloserve/wire/event_stream.py"}),  # of bytes, which end at CR and LF alone
    ),
    "HTTP clients for a server that the user names are made in one place": Idea(
        kind=ast.Call,
        word=r"httpx\.|urlopen",
        pattern=r"^\w+\(httpx\.(?:Async)?Client\b|^httpx\.(?:(?:Async)?Client|get|post|put|delete|stream)\(|urlopen\(",
        example="answer = httpx.get(f'{url}/health')",
        instead="client.http_clients, which uses no proxy for this machine",
        homes=frozenset({"sloserve/client/http_clients.py"}),
    ),
    "what is left of a request's times is computed in one place": Idea(
        kind=ast.Call,
        word=r"(?:late|left|waited)_s",
        pattern=r"^max\(.*(?:late|left|waited)_s.*1(?:e3|000\.0)\b",
        example="stated[key] = max((target_s - late_s) * 1e3, 1.0)",
        instead="wire.held.left_ms",
        homes=frozenset({"sloserve/wire/held.py"}),
    ),
    "every server of ours gives a request its id in one way": Idea(
        kind=ast.Call,
        word="identified",
        pattern=r"^identified\(",
        example="scope, request_id = identified(scope)",
        instead="wire.asgi.opened",
        homes=frozenset({"sloserve/wire/asgi.py"}),
    ),
    "every server of ours bounds a body in one way": Idea(
        kind=ast.Call,
        word="declares_more",
        pattern=r"^declares_more\(",
        example="if declares_more(scope['headers'], max_bytes): raise BodyTooLarge",
        instead="wire.opening.BoundedBody",
        homes=frozenset({"sloserve/wire/opening.py"}),
    ),
    "the package of HTTP/3 is loaded in one place": Idea(
        kind=ast.Constant,
        word=r"sloserve\.http3",
        pattern=r"^'sloserve\.http3\b",
        example="module = import_module('sloserve.http3.beside_tcp')",
        instead="wire.optional_http3.part",
        homes=frozenset({"sloserve/wire/optional_http3.py"}),
    ),
    "loops that must not end are guarded in one way": Idea(
        kind=ast.While,
        word="except Exception",
        pattern=r"^while [\s\S]*\n    try:[\s\S]*\n    except Exception",
        example="while True:\n    try:\n        step()\n    except Exception:\n        pass",
        instead="supervised.supervised, or `with supervised.Faults(...)` around a round",
        homes=frozenset({"sloserve/fleet/store/group_commit.py"}),  # which gives the error to those who wait
        under=("sloserve/fleet/", "sloserve/fleet/simulated/"),
    ),
    "no import hides from the import contracts": Idea(
        kind=ast.Call,
        word="import_",
        pattern=r"^(?:importlib\.import_module|import_module|__import__)\(['\"](?:vllm|torch|matplotlib)\b",
        example="importlib.import_module('vllm.v1')",
        instead="an import statement, where pyproject.toml allows it",
    ),
}


@cache
def nodes(source: str) -> dict[type[ast.AST], list[ast.AST]]:
    """The syntax of ``source`` by kind, parsed once for all ideas."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(ast.parse(source)):
        found.setdefault(type(node), []).append(node)
    return found


def spellings(idea: Idea, source: str) -> list[int]:
    """Lines of ``source`` on which ``idea`` is spelt out."""
    said = [number for number, line in enumerate(source.splitlines(), 1) if re.search(idea.word, line)]
    return [
        node.lineno
        for node in (nodes(source).get(idea.kind, []) if said else [])
        if isinstance(node, ast.expr | ast.stmt)
        and any(node.lineno <= number <= (node.end_lineno or 0) for number in said)
        and re.search(idea.pattern, ast.unparse(node))
    ]


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    paths = [path for folder in ("sloserve", "tests") for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize("name", IDEAS)
def test_it_is_spelt_out_only_at_home(name: str, sources: dict[str, str]) -> None:
    idea = IDEAS[name]
    searched = {
        file: text for file, text in sources.items() if file.startswith(idea.under) and re.search(idea.word, text)
    }
    found = {file for file, text in searched.items() if spellings(idea, text)}
    assert found == idea.homes, f"{name}; use {idea.instead}"


@pytest.mark.parametrize("name", IDEAS)
def test_the_spelling_is_recognized(name: str) -> None:
    assert spellings(IDEAS[name], IDEAS[name].example) == [1]


def test_yaml_states_targets_in_milliseconds_as_the_wire_does() -> None:
    files = [path for folder in ("configs", "sloserve", "docs", "examples") for path in (ROOT / folder).rglob("*.y*ml")]
    in_seconds = re.compile(r"\b(?:ttft|tpot|e2e)_s\s*:")
    assert len(files) > 5 and in_seconds.search("batch: {e2e_s: 60}")
    assert [str(p.relative_to(ROOT)) for p in files if in_seconds.search(p.read_text())] == [], "write e2e_ms: 60000"
