"""Serves a workload on a real engine, step by step, and holds what must be true whatever a policy plans.

Checked in every run: each request ends exactly once, and never after it was aborted; tokens come once and in order; all
KV blocks are free at the end; the model runner has no request left; steps that compute nothing are few. Outputs are for
the caller to compare with stock's.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sloserve.core.clock import ManualClock
from tests.equality.engine import MAX_NUM_SEQS, Engine
from tests.equality.lora import lora_request
from tests.equality.workloads import Job

STEP_S = 0.05
"""Virtual time of a step: the deadlines of the workloads pass at some time during a run, on every machine alike."""

MAX_EMPTY_RUN = 4
"""Steps in a row that may compute nothing while requests wait: two deep, a preempted request cannot come back before
its tokens in flight have arrived."""

MAX_STEPS = 4000


@dataclass
class Served:
    """What a run produced.

    outputs: request name -> tokens of each of its samples. aborted: name -> states it was aborted in.
    computed_tokens: by all steps, prompts and what preemptions cost again included. computed_twice: those that had been
    computed before for the same request, by its name.
    margins: name -> by how much the logit of each token led, where asked for. cuts: how often a step ended inside a
    prompt, or inside what a preempted request has to compute again. logprobs: name -> by token id, at each place of the
    prompt and of the first sample for which the request asks for them.
    """

    outputs: dict[str, list[list[int]]] = field(default_factory=dict)
    aborted: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    paused_steps: int = 0
    preemptions: int = 0
    computed_tokens: int = 0
    computed_twice: Counter[str] = field(default_factory=Counter)
    margins: dict[str, list[float]] = field(default_factory=dict)
    cuts: int = 0
    logprobs: dict[str, list[dict[int, float]]] = field(default_factory=dict)


class Beside(Protocol):
    """What happens to an engine while it serves, apart from the jobs."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""

    def before_step(self, number: int) -> None:
        """Do what is due before the step of this number."""

    def takes(self, output: Any) -> bool:
        """Return whether a ``RequestOutput`` is of a request that is none of the jobs."""


class _Observer:
    """Sits between engine and scheduler, and books what passes."""

    def __init__(self, engine: Engine, served: Served) -> None:
        scheduler = engine.scheduler
        self._scheduler = scheduler
        self._served = served
        self.tokens: dict[str, list[int]] = {}
        self.ends: Counter[str] = Counter()
        self._schedule, self._update, self._preempt = (
            scheduler.schedule,
            scheduler.update_from_output,
            scheduler._preempt_request,
        )
        scheduler.schedule, scheduler.update_from_output = self.schedule, self.update_from_output
        scheduler._preempt_request = self.preempt_request
        self._empty = 0
        self._computed: dict[str, int] = {}
        self.paused: set[str] = set()
        """Ids of the requests that the last ``schedule()`` passed over."""

    def schedule(self, *args: Any) -> Any:
        from sloserve.vllm_plugin.engine import compat

        scheduler = self._scheduler
        output = self._schedule(*args)
        assert len(scheduler.running) <= MAX_NUM_SEQS
        self._served.computed_tokens += output.total_num_scheduled_tokens
        held = {r.request_id for r in scheduler.running if r.next_decode_eligible_step > scheduler.current_step}
        if scheduler.use_v2_model_runner:  # it sets the field itself, in each step that computes the request
            held -= output.num_scheduled_tokens.keys()
        self.paused = held
        self._served.paused_steps += len(held)
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            end = request.num_computed_tokens
            self._served.cuts += request.is_prefill_chunk
            before = self._computed.get(request_id, 0)
            if end - tokens < before:
                self._served.computed_twice[request_id] += min(before, end) - (end - tokens)
            self._computed[request_id] = max(before, end)
            assert request_id not in held, "a paused request was scheduled"
        grammar_pending = any(compat.is_blocked(r) for r in scheduler.requests.values())
        idle = not scheduler.has_unfinished_requests()
        # A connector still reads blocks of what has ended, so that there may be none for anybody.
        being_read = len(scheduler.requests) > sum(scheduler.get_request_counts())
        may_be_empty = output.total_num_scheduled_tokens or idle or grammar_pending or being_read
        self._empty = 0 if may_be_empty else self._empty + 1
        assert self._empty <= MAX_EMPTY_RUN, "the engine spins on empty steps"
        return output

    def update_from_output(self, *args: Any) -> Any:
        outputs = self._update(*args)
        for batch in outputs.values():
            for out in batch.outputs:
                assert not self.ends[out.request_id], f"{out.request_id}: output after its end"
                self.tokens.setdefault(out.request_id, []).extend(out.new_token_ids)
                request = self._scheduler.requests.get(out.request_id)
                is_session = request is not None and request.resumable  # which ends with each answer, and goes on
                self.ends[out.request_id] += out.finish_reason is not None and not is_session
        return outputs

    def preempt_request(self, *args: Any, **kwargs: Any) -> None:
        self._served.preemptions += 1
        self._preempt(*args, **kwargs)


def serve(
    engine: Engine,
    jobs: list[Job],
    clock: ManualClock,
    adapters: Path,
    *,
    order: int = 1,
    margins: bool = False,
    token_s: float = 0.0,
    beside: Beside | None = None,
) -> Served:
    """Serve ``jobs`` to their end.

    Args:
        order: -1 sends those of the same step in reverse.
        margins: whether to collect them.
        token_s: what each token makes a step longer.
        beside: what else happens to the engine meanwhile.
    """
    from sloserve.vllm_plugin.engine import compat

    served = Served()
    observer = _Observer(engine, served)
    scheduler, llm = engine.scheduler, engine.llm
    free_at_start = compat.free_blocks(scheduler)
    assert free_at_start == compat.total_blocks(scheduler) - 1
    pending = sorted(jobs[::order], key=lambda job: job.at_step)
    live: dict[str, tuple[Job, str]] = {}
    while pending or llm.has_unfinished_requests() or not engine.idle() or (beside is not None and not beside.is_over):
        assert served.steps < MAX_STEPS, f"no end in sight: {sorted(live)} unfinished"
        while pending and (pending[0].at_step <= served.steps or not live):
            job = pending.pop(0)
            live[job.name] = (job, _send(engine, job, clock, adapters, margins))
            if job.abort_in == "new":
                _abort(engine, job, served, live, "new")
        computed_tokens = served.computed_tokens
        if beside is not None:
            beside.before_step(served.steps)
        for output in llm.step():
            if beside is not None and beside.takes(output):
                continue
            assert output.finished and output.request_id not in served.outputs
            del live[output.request_id]
            assert all(sample.finish_reason in ("stop", "length") for sample in output.outputs), output
            served.outputs[output.request_id] = [list(sample.token_ids) for sample in output.outputs]
            places = [*(output.prompt_logprobs or []), *(output.outputs[0].logprobs or [])]
            if places:
                served.logprobs[output.request_id] = [{t: p.logprob for t, p in (one or {}).items()} for one in places]
            if margins:
                served.margins[output.request_id] = _margins(output)
        for job, request_id in list(live.values()):
            if job.abort_at is not None and served.steps >= max(job.abort_at, job.at_step):
                _abort(engine, job, served, live, ",".join(sorted(_states(scheduler, request_id, observer.paused))))
            elif job.abort_in is not None and job.abort_in in (seen := _states(scheduler, request_id, observer.paused)):
                _abort(engine, job, served, live, ",".join(sorted(seen)))
        served.steps += 1
        clock.advance_to(clock.now_s() + STEP_S + token_s * (served.computed_tokens - computed_tokens))
    _check(served, observer, jobs)
    assert compat.free_blocks(scheduler) == free_at_start, "KV blocks were lost"
    assert not scheduler.requests and not scheduler.running and not scheduler.waiting
    return served


def _check(served: Served, observer: _Observer, jobs: list[Job]) -> None:
    assert sorted([*served.outputs, *served.aborted]) == sorted(job.name for job in jobs), "a request was lost"
    assert all(count == 1 for request_id, count in observer.ends.items() if observer.tokens.get(request_id) and count)
    ended = Counter(tuple(observer.tokens[i]) for i, count in observer.ends.items() if count)
    # A stop string ends a reply behind the engine, which has computed more by then.
    stopped = {job.name for job in jobs if "stop" in job.params}
    outputs = [samples for name, samples in served.outputs.items() if name not in stopped]
    wanted = Counter(tuple(sample) for samples in outputs for sample in samples)
    assert not wanted - ended, "tokens were lost, repeated or reordered on their way out"


def _send(engine: Engine, job: Job, clock: ManualClock, adapters: Path, margins: bool) -> str:
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    params = dict(job.params)
    if "structured_outputs" in params:
        params["structured_outputs"] = StructuredOutputsParams(**params["structured_outputs"])
    if margins:
        params["logprobs"] = 2
    return str(
        engine.llm.add_request(
            job.name,
            job.prompt,
            SamplingParams(**params, extra_args=dict(job.slo), output_kind=RequestOutputKind.FINAL_ONLY),
            arrival_time=clock.now_s(),
            priority=job.priority,
            lora_request=lora_request(job.adapter, adapters) if job.adapter is not None else None,
        )
    )


def _abort(engine: Engine, job: Job, served: Served, live: dict[str, tuple[Job, str]], state: str) -> None:
    engine.llm.abort_request([job.name])
    served.aborted[job.name] = state
    del live[job.name]


def _states(scheduler: Any, request_id: str, paused: set[str]) -> set[str]:
    """Where the request stands, or each of its samples."""
    from vllm.v1.request import RequestStatus

    states = set()
    for request in scheduler.requests.values():
        if request.request_id != request_id and not request.request_id.endswith(f"_{request_id}"):
            continue
        if request.status == RequestStatus.PREEMPTED:
            states.add("preempted")
        elif request.status != RequestStatus.RUNNING:
            states.add("waiting")
        else:
            states.add("decoding" if request.num_output_tokens else "prefilling")
            if request.request_id in paused:
                states.add("paused")
    return states


def _margins(output: Any) -> list[float]:
    """By how much the best token's logit exceeds the second's, at each token of the first sample."""
    found = []
    for candidates in output.outputs[0].logprobs or []:
        best, second = sorted((c.logprob for c in candidates.values()), reverse=True)[:2]
        found.append(best - second)
    return found
