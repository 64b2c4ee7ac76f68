"""Random requests on random engines, served by stock's scheduler and by ours: every reply must be stock's.

All is drawn from one seed: the engine, the requests (text, grammars, samples, stop strings, log probabilities, drafts,
adapters, sessions with streaming input, aborts), and what happens to our scheduler meanwhile (changes of policy and of
shadow policy, resets of the KV cache). A difference names the seed of its case.

Where a reply differs and stock's own reply had, at that place, a second token as likely as the first up to rounding, it
tells nothing, and is counted as a tie: another batch rounds differently.
"""

from collections import Counter
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.clock import ManualClock
from tests.equality.engine import BLOCK_TOKENS, MAX_MODEL_LEN, MAX_NUM_SEQS, Engine, EngineConfig
from tests.equality.harness import Served, serve
from tests.equality.lora import ADAPTERS
from tests.equality.subjects import SUBJECTS
from tests.equality.workloads import CLASSES, SHARED, Job

TIE = 1e-4
"""Another batch moves logits by about 1e-5: a token that leads by less than this could flip."""
LOGPROB_TOLERANCE = 1e-3
ROOMY_BLOCKS = MAX_NUM_SEQS * MAX_MODEL_LEN // BLOCK_TOKENS + 33
"""Of a KV cache that has room for all running requests and for sessions between two inputs."""
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
AGAIN = "to be or not to be, "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "ended": {"ignore_eos": False},
    "n": {"n": 2, "temperature": 1.0, "top_k": 1},
    "seed": {"seed": 7, "temperature": 1.0},
    "seed-n": {"seed": 3, "temperature": 0.8, "n": 3, "top_p": 0.9},
    "json": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False},
    "regex": {"structured_outputs": {"regex": r"[a-z]{6}-[0-9]{4}(, [a-z]{3}){5}"}, "ignore_eos": False},
    "choice": {"structured_outputs": {"choice": ["the quick brown fox", "pack my box with"]}, "ignore_eos": False},
    "stop": {"stop": ["e", "qu", " "], "min_tokens": 2},
    "stop-token": {"stop_token_ids": list(range(40, 120)), "min_tokens": 3},
    "logprobs": {"logprobs": 3},
    "prompt-logprobs": {"prompt_logprobs": 1},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
    "bias": {"logit_bias": {65: 4.0, 66: -3.0}, "bad_words": ["zz"]},
}
READS_OUTPUT = ("penalties", "bias")
"""Kinds for which vLLM's model runner has to know the tokens that were computed so far."""
POLICIES = tuple(
    dict.fromkeys(str(subject.section.get("policy", "fcfs")) for subject in SUBJECTS if not subject.name[:5] == "chaos")
) + ("chaos:preempt=0.2:pause=0.3:limit=0.2", "chaos:preempt=0.4:pause=0.5:limit=0:illegal=0")
"""Policies that a case begins with and changes to."""


@dataclass(frozen=True)
class World:
    """An engine on which several cases are served."""

    config: EngineConfig
    drafts: bool = False
    has_room: bool = False
    """Whether the KV cache has room for all requests at once. vLLM loses sessions that it has to preempt, so that
    sessions are drawn in such an engine alone (docs/upstream.md)."""

    @property
    def arguments(self) -> dict[str, Any]:
        room = {"num_gpu_blocks_override": ROOMY_BLOCKS} if self.has_room else {}
        return room | ({"speculative_config": DRAFTS} if self.drafts else {})

    def __str__(self) -> str:
        return f"{self.config}{'-drafts' if self.drafts else ''}{'-room' if self.has_room else ''}"


def draw_world(rng: np.random.Generator, drafts: bool | None = None) -> World:
    """Draw an engine. drafts: whether it has any; drawn for ``None``, and then never beside async scheduling."""
    if drafts is None:
        drafts = bool(rng.random() < 0.2)
    config = EngineConfig(
        async_scheduling=bool(rng.random() < 0.6) and not drafts,  # the CPU engine drafts n-grams in sync mode only
        prefix_caching=bool(rng.random() < 0.6),
        lora=bool(rng.random() < 0.2) and not drafts,
        host_blocks=int(rng.choice([0, 0, 6, 24, 96])),
    )
    return World(config, drafts, has_room=bool(rng.random() < 0.4))


def draw_jobs(rng: np.random.Generator, world: World, count: int) -> list[Job]:
    """Draw requests that arrive in bursts and by themselves, and of which some are aborted."""
    kinds = list(KINDS)
    if world.drafts:  # stock's CPU engine does not survive draws beside drafts, and vLLM refuses a bias
        kinds = [kind for kind in kinds if not KINDS[kind].keys() & {"temperature", "logit_bias"}]
    if world.config.lora:
        kinds = ["text", "ended", "seed", "stop", "logprobs"]
    if world.config.async_scheduling:
        # vLLM miscounts the tokens of a request with min_tokens where one of the others joins it (docs/upstream.md).
        left_out = READS_OUTPUT if rng.random() < 0.5 else [kind for kind in kinds if "min_tokens" in KINDS[kind]]
        kinds = [kind for kind in kinds if kind not in left_out]
    jobs, at_step = [], 0
    for number in range(count):
        kind = str(rng.choice(kinds))
        at_step += int(rng.choice([0, 0, 1, 3, 12]))
        slo: dict[str, Any] = {}
        if rng.random() < 0.7:
            slo["slo_class"] = str(rng.choice(CLASSES))
        for name, most in (("slo_ttft_ms", 3000.0), ("slo_tpot_ms", 400.0), ("slo_e2e_ms", 20000.0)):
            if rng.random() < 0.5:
                slo[name] = float(rng.uniform(50.0, most))
        max_tokens = int(rng.integers(1, 60))
        longest = MAX_MODEL_LEN - max_tokens - 40
        prompt = (SHARED if rng.random() < 0.4 else "") + f"Request {number}: " + AGAIN * int(rng.integers(0, 5))
        params = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **KINDS[kind]}
        if "min_tokens" in params:
            params["min_tokens"] = min(params["min_tokens"], max_tokens)
        jobs.append(
            Job(
                f"{kind}-{number}",
                prompt[: int(rng.integers(1, max(longest, 2)))],
                at_step,
                params,
                priority=int(rng.integers(-2, 3)),
                adapter=int(rng.choice(ADAPTERS[: 2 + (rng.random() < 0.3)])) if world.config.lora else None,
                abort_at=at_step + int(rng.integers(0, 60)) if rng.random() < 0.2 else None,
                slo=slo,
            )
        )
    return jobs


@dataclass
class Happenings:
    """What happens to an engine while it serves, by the step before which it comes.

    Sessions have streaming input: each input is sent when the one before it has been answered, and so each answer must
    be the same however long it took.

    inputs: of each session, by its name, from ``begins_at`` on.
    policies: changes of the policy and of the shadow policy, for ours alone.
    resets: of the KV cache, for ours alone.
    answers: of each session, the tokens of each answer.
    """

    engine: Engine
    clock: ManualClock
    inputs: dict[str, list[list[int]]] = field(default_factory=dict)
    begins_at: int = 0
    policies: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    resets: frozenset[int] = frozenset()
    answers: dict[str, list[list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = {name: [] for name in self.inputs}
        self._ids: dict[str, str] = {}
        self._ended: set[str] = set()

    @property
    def is_over(self) -> bool:
        return len(self._ended) == len(self.inputs)

    def before_step(self, number: int) -> None:
        if number in self.policies:
            self.engine.scheduler.set_policies(*self.policies[number])
        if number in self.resets:
            self.engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        if number == self.begins_at:
            for name in self.inputs:
                self._send(name)

    def takes(self, output: Any) -> bool:
        if output.request_id not in self.inputs:
            return False
        sample = output.outputs[0]
        self.answers[output.request_id][-1] += sample.token_ids
        if sample.finish_reason is not None:
            self._send(output.request_id)
        return True

    def _send(self, name: str) -> None:
        """Send the next input of a session, or that there is none, as AsyncLLM does."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        llm, chunks, answered = self.engine.llm, self.inputs[name], len(self.answers[name])
        is_last = answered == len(chunks)
        request = llm.input_processor.process_inputs(
            self._ids.get(name, name),
            {"prompt_token_ids": [0] if is_last else list(chunks[answered])},
            SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, output_kind=RequestOutputKind.DELTA),
            supported_tasks=llm.get_supported_tasks(),
            arrival_time=self.clock.now_s(),
            resumable=not is_last,
        )
        if name not in self._ids:
            llm.input_processor.assign_request_id(request)
            self._ids[name] = request.request_id
        request.external_req_id = name
        if is_last:
            self._ended.add(name)
        else:
            self.answers[name].append([])
        llm.output_processor.add_request(request, None, None, 0)
        # A server sends it to another process; here both would extend the same list of tokens.
        sent = copy(request)
        sent.prompt_token_ids = list(request.prompt_token_ids)
        llm.engine_core.add_request(sent)


def draw_inputs(rng: np.random.Generator, world: World) -> dict[str, list[list[int]]]:
    """Draw the inputs of some sessions; none beside adapters, which each request of such an engine has."""
    count = 0 if world.config.lora or not world.has_room else int(rng.integers(0, 3))
    return {
        f"session-{number}": [
            rng.integers(32, 120, size=int(rng.integers(1, 40))).tolist() for _ in range(int(rng.integers(1, 4)))
        ]
        for number in range(count)
    }


def draw_changes(rng: np.random.Generator) -> tuple[dict[int, tuple[str | None, str | None]], frozenset[int]]:
    """Draw changes of policies, and resets of the KV cache, by step."""
    steps = np.cumsum(rng.integers(2, 50, size=12)).tolist() if rng.random() < 0.7 else []
    policies: dict[int, tuple[str | None, str | None]] = {}
    for step in steps:
        shadow = str(rng.choice(["", "edf", "sjf", "auto"])) if rng.random() < 0.3 else None
        policies[int(step)] = (str(rng.choice(POLICIES)) if rng.random() < 0.8 else None, shadow)
    return policies, frozenset(rng.integers(5, 300, size=3).tolist() if rng.random() < 0.3 else [])


@dataclass
class Tally:
    """What a run of cases has shown."""

    cases: int = 0
    replies: int = 0
    ties: int = 0
    logprobs: int = 0
    counters: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        shown = ("plans", "evictions", "paused_steps", "limited_steps", "swap_stores", "swap_loads", "policy_changes")
        counts = ", ".join(f"{self.counters[name]} {name.replace('_', ' ')}" for name in shown)
        compared = f"{self.replies} replies and {self.logprobs} log probabilities compared, {self.ties} ties"
        return f"{self.cases} cases, {compared}; {counts}"


def run_case(engine: Engine, world: World, seed: int, folder: Path, tally: Tally) -> None:
    """Serve one drawn case by stock's scheduler and by ours. Raises: AssertionError where a reply differs."""
    rng = np.random.default_rng(seed)
    jobs, inputs = draw_jobs(rng, world, int(rng.integers(4, 26))), draw_inputs(rng, world)
    begins_at = int(rng.integers(0, 40))
    engine.use_stock()
    clock = ManualClock()
    stocks = Happenings(engine, clock, inputs, begins_at)
    expected = serve(engine, jobs, clock, folder, margins=True, beside=stocks)
    section = {
        "policy": str(rng.choice(POLICIES)),
        "swapping": str(rng.choice(["cost", "always"])),
        "plan_share": float(rng.choice([0.05, 1.0])),
        "seed": seed % 1000,
    }
    if rng.random() < 0.2:
        section["shadow_policy"] = "edf"
    case = f"case {seed} on {world} under {section}"
    clock = ManualClock()
    engine.use_sloserve(section, clock=clock)
    policies, resets = draw_changes(rng)
    ours = Happenings(engine, clock, inputs, begins_at, policies, frozenset() if inputs else resets)
    served = serve(engine, jobs, clock, folder, token_s=float(rng.choice([0.0, 0.01])), beside=ours)
    counters = Counter(engine.scheduler.slo_counters)
    assert counters["internal_errors"] == 0, f"{case}: an internal error"
    tally.cases += 1
    tally.counters.update(counters)
    tally.counters["policy_changes"] += sum(step < served.steps for step in ours.policies)
    assert ours.answers == stocks.answers, f"{case}: an answer of a session differs from stock's"
    tally.replies += sum(map(len, ours.answers.values()))
    differing = []
    # A reset drops the tokens in flight, which vLLM then draws again from generators that have gone on: a drawn reply
    # changes under stock's scheduler, too.
    redraws = bool(ours.resets) and world.config.async_scheduling
    drawn = {job.name for job in jobs if redraws and "seed" in job.params}
    for name in served.outputs.keys() & expected.outputs.keys() - drawn:
        tally.replies += len(served.outputs[name])
        if served.outputs[name] == expected.outputs[name]:
            _compare_logprobs(name, served, expected, case, tally)
        elif _is_tie(name, served, expected):
            tally.ties += 1
        else:
            differing.append(name)
    if differing:
        moving = _move_by_themselves(engine, jobs, expected, folder)
        tally.ties += len(moving.intersection(differing))
        assert moving.issuperset(differing), f"{case}: {sorted(set(differing) - moving)} differ from stock's"


def _is_tie(name: str, served: Served, expected: Served) -> bool:
    """Return whether only the first sample differs, first at a place where two tokens were as likely as each other."""
    ours, stocks = served.outputs[name], expected.outputs[name]
    if ours[1:] != stocks[1:]:
        return False
    pairs = enumerate(zip(ours[0], stocks[0], strict=False))
    place = next((i for i, (one, other) in pairs if one != other), None)
    return place is not None and place < len(expected.margins[name]) and expected.margins[name][place] < TIE


def _move_by_themselves(engine: Engine, jobs: list[Job], expected: Served, folder: Path) -> set[str]:
    """Return the requests whose reply by stock's scheduler changes where those of one step are sent in reverse."""
    engine.use_stock()
    again = serve(engine, jobs, ManualClock(), folder, order=-1)
    return {name for name, reply in again.outputs.items() if reply != expected.outputs.get(name, reply)}


def _compare_logprobs(name: str, served: Served, expected: Served, case: str, tally: Tally) -> None:
    """Compare the log probabilities of the tokens that both runs report."""
    # Those of the prompt come first. Stock's run reports those of each token besides, for its margins.
    ours, stocks = served.logprobs.get(name, []), expected.logprobs.get(name, [])
    for place, (one, other) in enumerate(zip(ours, stocks, strict=False)):
        for token in one.keys() & other.keys():
            assert abs(one[token] - other[token]) < LOGPROB_TOLERANCE, f"{case}: {name}, place {place}, token {token}"
            tally.logprobs += 1
