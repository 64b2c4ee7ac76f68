"""A model whose own replies depend on the batch: under plans its logits move no more than stock's do.

Qwen3-Next computes in bfloat16, in which another cut of the same tokens rounds otherwise: stock's text changes when it
preempts. The measure is stock itself, computing its replies again as prompts, cut in other places and beside other
requests: by how much a token's log probability moves on average, and by how much the lead of the best token over the
second moves at most (one rises while the other falls, so that is more than either moves). A plan may move tokens about
as far on average, and change one only where stock's best two were no farther apart than their lead moves at most.

Not so DeepSeek-V3: the CPU build's MLA moves the log probabilities of a dense model by 1.3 on average and by 12 at most
from cut to cut, which leaves nothing to compare. That each request ends with all its tokens is all that is asserted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import pytest

from sloserve.core.clock import ManualClock
from tests.equality.engine import ENGINE_WARNINGS
from tests.equality.harness import Served, serve
from tests.equality.layouts.bench import MODES, SUBJECT, Case
from tests.equality.subjects import Subject
from tests.equality.test_real_engine import Bench
from tests.equality.workloads import WORKLOADS, Job

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.whole,
    *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS),
]

SWAPPED = [replace(mode, host_blocks=4000) for mode in MODES[:2]]
CASES = [Case("qwen3-next", mode) for mode in [*MODES, *SWAPPED]]
NAMES = ("auto", "econo", "edf", "chaos-all", "chaos-nearly-all")
CUTS = (64, 40, 23)
"""Tokens of a step in which stock computes its replies again."""

REPLY_TOKENS = 40

RANKS = 5
"""Best tokens at each place of a recomputation: stock's best two are among them."""

Places = dict[str, list[dict[int, float]]]
"""By request and place of its reply: log probabilities by token id."""

SLACK = 1.5
"""How much farther than in stock's farthest recomputation a plan may move log probabilities on average."""


def texts() -> list[Job]:
    params = {"max_tokens": REPLY_TOKENS, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}
    return [replace(job, params=params) for job in WORKLOADS["mixed"]()[:10]]


@dataclass
class Rounding:
    """stock: its replies. mean: by how much a token's log probability moves on average. most: by how much the lead of
    the best token over the second moves at most.
    """

    stock: Served
    mean: float
    most: float


class Teacher:
    """An engine, whose stock scheduler computes given replies again."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.engine = bench, bench.engine
        tokenizer = self.engine.llm.get_tokenizer()
        self.prompts = {job.name: tokenizer.encode(job.prompt) for job in texts()}
        self.engine.use_stock()
        stock = self._serve(texts())
        again = [self.forced(stock, cut, order) for cut in CUTS for order in (1, -1)]
        pairs = [(stock.logprobs, one) for one in again] + [(again[0], one) for one in again[1:]]
        mean = max(fmean(moves(stock, one, other)) for one, other in pairs)
        self.rounding = Rounding(stock, mean, max(max(lead_moves(stock.logprobs, *pair)) for pair in pairs))

    def _serve(self, jobs: list[Job], order: int = 1) -> Served:
        return serve(self.engine, jobs, ManualClock(), self.bench._adapters, order=order, margins=False)

    def forced(self, served: Served, cut: int = CUTS[0], order: int = 1) -> Places:
        """The places of the replies, when they are computed as prompts."""
        replies = {name: samples[0] for name, samples in served.outputs.items()}
        jobs = [
            Job(name, {"prompt_token_ids": self.prompts[name] + reply}, 0, {"max_tokens": 1, "prompt_logprobs": RANKS})
            for name, reply in replies.items()
        ]
        self.engine.use_stock()
        self.engine.scheduler.max_num_scheduled_tokens = min(cut, self.engine.scheduler.max_num_scheduled_tokens)
        places = self._serve(jobs, order).logprobs
        return {name: places[name][len(self.prompts[name]) :][: len(reply)] for name, reply in replies.items()}


def moves(served: Served, one: Places, other: Places) -> list[float]:
    """By how much the log probability of each token of the replies differs between two computations of them."""
    return [
        abs(a[token] - b[token])
        for name, (reply,) in served.outputs.items()
        for token, a, b in zip(reply, one[name], other[name], strict=True)
    ]


def lead_moves(stock: Places, one: Places, other: Places) -> list[float]:
    """By how much the lead of stock's best token over its second differs, where both computations state the two."""
    found = []
    for name, places in stock.items():
        for place, a, b in zip(places, one[name], other[name], strict=True):
            best, second = sorted(place, key=place.__getitem__, reverse=True)[:2]
            if {best, second} <= a.keys() & b.keys():
                found.append(abs((a[best] - a[second]) - (b[best] - b[second])))
    return found


def led_by(place: dict[int, float]) -> float:
    best, second = sorted(place.values(), reverse=True)[:2]
    return best - second


@pytest.fixture(scope="module")
def teacher(bench: Bench) -> Iterator[Teacher]:
    yield Teacher(bench)


@pytest.mark.parametrize("bench", CASES, indirect=True, ids=str)
@pytest.mark.parametrize("subject", [SUBJECT[name] for name in NAMES], ids=str)
def test_logits(teacher: Teacher, subject: Subject) -> None:
    engine, rounding = teacher.engine, teacher.rounding
    clock = ManualClock()
    swaps = engine.config.host_blocks > 0
    section = subject.swapping().section if swaps else subject.section
    engine.use_sloserve({**section, "plan_share": 1.0}, clock=clock)
    served = serve(engine, texts(), clock, teacher.bench._adapters)
    counters = engine.scheduler.slo_counters
    assert counters["plans"] > 0 and counters["internal_errors"] == 0
    assert served.preemptions > 0 or not subject.name.startswith("chaos")
    assert counters["swap_loads"] > 0 or not (swaps and served.preemptions)
    assert not (swaps and served.computed_twice)
    assert fmean(moves(served, served.logprobs, teacher.forced(served))) <= SLACK * rounding.mean
    for name, (reply,) in served.outputs.items():
        (its,) = rounding.stock.outputs[name]
        differs = [at for at in range(REPLY_TOKENS) if reply[at] != its[at]]
        if differs:
            led = led_by(rounding.stock.logprobs[name][differs[0]])
            assert led <= rounding.most, f"{name} differs at token {differs[0]}, where stock's led by {led}"


@pytest.mark.parametrize("bench", [Case("deepseek-v3")], indirect=True, ids=str)
def test_nothing_is_lost(bench: Bench) -> None:
    clock = ManualClock()
    bench.engine.use_sloserve({**SUBJECT["chaos-nearly-all"].section, "plan_share": 1.0}, clock=clock)
    served = serve(bench.engine, texts(), clock, bench._adapters)
    assert served.preemptions > 0 and bench.engine.scheduler.slo_counters["internal_errors"] == 0
    assert {len(reply) for (reply,) in served.outputs.values()} == {REPLY_TOKENS}
