"""The requests that are served. All are greedy or have a seed: an output depends on nothing but its request."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.equality.lora import ADAPTERS

SHARED = "You are a helpful engine that answers every request before its deadline. "
"""A prefix of more than two blocks, which the prefix cache finds again."""

RISING = "rising"
"""In a request's ``extra_args``: no token of its reply may be smaller than the one before, see ``logits.Rising``."""


@dataclass(frozen=True)
class Job:
    """One request.

    at_step: step before which it is sent.
    abort_in: state in which it is aborted when first seen.
    abort_at: step after which it is aborted, if it has not ended.
    """

    name: str
    prompt: Any
    at_step: int
    params: dict[str, Any]
    priority: int = 0
    adapter: int | None = None
    abort_in: str | None = None
    abort_at: int | None = None
    slo: dict[str, Any] = field(default_factory=dict)


CLASSES = ("interactive", "batch", "background", "priority")


def _slo(i: int) -> dict[str, Any]:
    """Deadlines that cross the order of arrival, so that every policy has something to reorder and to preempt for."""
    if i % 5 == 4:
        return {}
    return {"slo_class": CLASSES[i % 4], "slo_e2e_ms": [9000, 30000, 2500, 60000][i % 4], "slo_ttft_ms": 2000.0}


def without_targets(job: Job) -> Job:
    """The same, with the targets of its class and none of its own: of readers no prompt is so late that none waits."""
    return replace(job, slo={name: value for name, value in job.slo.items() if name == "slo_class"})


def _job(i: int, prompt: str, *, kind: str = "text", **changes: Any) -> Job:
    params = {
        "max_tokens": 20 + 9 * (i % 4),
        "temperature": 0.0,
        "ignore_eos": i % 3 != 0,
        **changes.pop("params", {}),
    }
    # The first eight fill the slots at once; the others arrive while these run.
    at_step = 0 if i < 8 else 5 * (i - 7)
    return Job(f"{kind}-{i}", prompt, at_step, params, priority=-(i % 3), slo=_slo(i), **changes)


def _prompt(i: int) -> str:
    return (SHARED if i % 2 else "") + f"Request {i}: " + "tell me about the sea. " * (i % 4)


def mixed() -> list[Job]:
    """Free text, greedy or drawn with a seed, n = 2, and structured output of three kinds, side by side.

    vLLM refuses n = 2 at temperature 0: those are drawn from the single best token, which is the same.
    """
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    choice = ["the quick brown fox jumps over", "the lazy dog", "pack my box with five dozen liquor jugs"]
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("text", {}),
        ("n=2", {"n": 2, "temperature": 1.0, "top_k": 1}),
        ("json", {"structured_outputs": {"json": schema}, "ignore_eos": False}),
        ("seed", {"seed": 7, "temperature": 1.0}),
        ("regex", {"structured_outputs": {"regex": r"[a-z]{6}-[0-9]{4}(, [a-z]{3}){8}"}, "ignore_eos": False}),
        ("choice", {"structured_outputs": {"choice": choice}, "ignore_eos": False}),
    ]
    return [_job(i, _prompt(i), kind=kinds[i % 6][0], params=kinds[i % 6][1]) for i in range(18)]


def short() -> list[Job]:
    """Each kind of the above twice, the longest prompts among them."""
    return mixed()[:12]


def greedy() -> list[Job]:
    """Without draws, which stock's CPU engine does not survive beside drafts; of words that come again, for drafts."""
    again = "to be or not to be, "
    chosen = [job for job in mixed() if job.params["temperature"] == 0.0]
    return [replace(job, prompt=f"{job.prompt} {again * (i % 4)}") for i, job in enumerate(chosen)]


ABORT_STATES = ("new", "waiting", "prefilling", "decoding", "preempted", "paused")


def aborts() -> list[Job]:
    """Two requests for each state, aborted when first seen in it, and others that must not notice. One has n = 2."""
    jobs = []
    for i in range(18):
        state = ABORT_STATES[i // 3] if i % 3 else None
        params: dict[str, Any] = {"n": 2, "temperature": 1.0, "top_k": 1} if i == 10 else {}
        params |= {"seed": 7, "temperature": 1.0} if i % 6 == 3 else {}
        jobs.append(_job(i, _prompt(i), abort_in=state, params=params))
    return jobs


def lora(adapters: tuple[int, ...] = ADAPTERS[:2]) -> list[Job]:
    """Two adapters, as many as the engine holds at a time; few tokens, as the CPU computes LoRA slowly.

    None without an adapter: vLLM's CPU kernels apply the last adapter to such a request whenever another request of the
    step has one (``bgmv_shrink`` indexes with -1), so that stock's own output would depend on the batch.
    """
    seeded = {"seed": 7, "temperature": 1.0}
    return [
        _job(
            i,
            _prompt(i),
            adapter=adapters[i % len(adapters)],
            params={"max_tokens": 16 + i, **(seeded if i % 3 == 1 else {})},
        )
        for i in range(13)
    ]


def crowded_lora() -> list[Job]:
    """One adapter more than the engine holds."""
    return lora(ADAPTERS)


def many() -> list[Job]:
    """Two hundred requests of all kinds with short replies, which arrive about as fast as others end."""
    base, jobs = mixed(), []
    for i in range(200):
        job = base[i % len(base)]
        prompt = (SHARED if i % 2 else "") + f"Request {i}: " + "tell me about the sea. " * (i % 4)
        params = {**job.params, "max_tokens": 10 + 4 * (i % 4)}
        at_step = 0 if i < 8 else 3 * (i - 7)
        jobs.append(replace(job, name=f"{job.name}-{i}", prompt=prompt, at_step=at_step, params=params))
    return jobs


def prompt_logprobs() -> list[Job]:
    """Some ask for the log probabilities of their prompt, which vLLM computes whatever is kept of it."""
    return [_job(i, _prompt(i), params={"prompt_logprobs": 1} if i % 3 == 0 else {}) for i in range(12)]


WORKLOADS: dict[str, Callable[[], list[Job]]] = {
    "mixed": mixed,
    "short": short,
    "greedy": greedy,
    "many": many,
    "prompt-logprobs": prompt_logprobs,
    "aborts": aborts,
    "lora": lora,
    "crowded-lora": crowded_lora,
}
