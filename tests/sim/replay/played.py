"""Recordings of runs of the engine model, in place of a server's."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import ClassTable, SLOClass, Targets
from sloserve.engine.recording.events import (
    FORMAT,
    Arrived,
    Event,
    FirstToken,
    RequestAdmitted,
    RequestEnded,
    SegmentHead,
    Stepped,
)
from sloserve.engine.recording.reading import Recording
from sloserve.engine.recording.segments import SegmentWriter
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.latency import DecodeLine, Hinge, StepLoad
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.settings import KEY, plugin_settings
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.seeding import stream

EPOCH_S = 1.7e9
STRETCH = 64
"""Tokens of a stretch of a prompt that a recording identifies."""
CLASSES = ClassTable(
    {
        "interactive": SLOClass("interactive", 1, Targets(ttft_s=0.5, tpot_s=0.05)),
        "batch": SLOClass("batch", 2, Targets(e2e_s=60.0)),
    },
    "interactive",
)
ENGINE = EngineSettings(kv_blocks=2000, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=4096)
PROFILE = load_profile("h100-llama3-8b").model_copy(
    update={
        "latency": Hinge(
            free_tokens=0,
            base_ms=8.0,
            token_ms=0.02,
            seq_ms=0.1,
            context_token_ms=0.0001,
            attention_token2_ms=0.0,
            prefix_attention_token2_ms=0.0,
            decode=DecodeLine(base_ms=8.0, context_token_ms=0.0001, seq_ms=0.15),
        )
    }
)


class RecordedModel(ModelEngine):
    """An engine model that keeps the load of each step."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.loads: list[StepLoad] = []

    def _duration_s(self, load: StepLoad, rounds: int = 0) -> float:
        self.loads.append(load)
        return super()._duration_s(load, rounds)


def workload(count: int = 400, rps: float = 6.0, seed: int = 0, batch_share: float = 0.3) -> list[WorkloadRequest]:
    """Return requests of two classes, batch requests with longer outputs."""
    rng = stream(seed, "tests/replay")
    at_s, found = 0.0, []
    for number in range(1, count + 1):
        at_s += float(rng.exponential(1.0 / rps))
        name = "batch" if rng.random() < batch_share else "interactive"
        tokens = int(rng.integers(5, 60)) * (3 if name == "batch" else 1)
        found.append(
            WorkloadRequest(
                f"r{number}", at_s, int(rng.integers(10, 300)), tokens, CLASSES.slo(name, Targets()), task=name
            )
        )
    return found


def chats(count: int = 400, rps: float = 12.0, seed: int = 0) -> list[WorkloadRequest]:
    """Return the same requests with longer prompts, of which four in five begin as others do."""
    rng = stream(seed, "tests/replay/chats")
    found = []
    for request in workload(count, rps, seed):
        shared = int(rng.integers(5))
        prompt = request.prompt_tokens + STRETCH * (2 * shared if shared else 3)
        begins = [1000 * shared + i for i in range(2 * shared)]
        ids = [*begins, *(100_000 + 100 * len(found) + i for i in range(-(-prompt // STRETCH) - len(begins)))]
        request = replace(request, prompt_tokens=prompt, prefix_ids=tuple(ids), prefix_block_tokens=STRETCH)
        found.append(request)
    return found


def played(
    requests: Sequence[WorkloadRequest],
    policy: str = "fcfs",
    noise: float = 0.1,
    seed: int = 0,
    settings: EngineSettings = ENGINE,
) -> tuple[Recording, RunLog]:
    """Return the recording of a run, and its log."""
    config = {KEY: {"policy": policy, **CLASSES.as_config()}}
    engine = RecordedModel(settings, PROFILE, config, noise=StepNoise(seed, noise) if noise else None)
    log = engine.run(requests)
    return recording_of(log, engine.loads, policy, settings), log


def recording_of(log: RunLog, loads: Sequence[StepLoad], policy: str, engine: EngineSettings = ENGINE) -> Recording:
    """Return the recording that a server would have written of a run. Accepted drafts are all in the last step."""
    settings = plugin_settings({KEY: {"policy": policy, **CLASSES.as_config()}}).as_config()
    recording = Recording(SegmentHead(FORMAT, EPOCH_S, engine_facts(engine), settings, policy, None, STRETCH, []))
    names = CLASSES.names
    for number, one in enumerate(log.requests, 1):
        asked, targets = one.request, one.request.slo.targets
        first_after_s = None if asked.slo.promise is None else asked.slo.promise.given_after_s
        recording.take(
            Arrived(
                number,
                EPOCH_S + asked.arrival_s,
                names.index(asked.slo.slo_class.name),
                targets.ttft_s,
                targets.tpot_s,
                targets.e2e_s,
                targets.tds,
                asked.prompt_tokens,
                asked.max_tokens,
                None,
                asked.priority,
                0,
                0,
                0,
                None,
                None,
                False,
                _contents(asked) if engine.enable_prefix_caching else b"",
                first_from_s=None if first_after_s is None else EPOCH_S + asked.arrival_s + first_after_s,
            )
        )
        if one.stages is not None:
            admitted_s = EPOCH_S + asked.arrival_s + one.stages.waiting_s
            recording.take(RequestAdmitted(number, admitted_s, one.cached_tokens, False))
        if one.token_times_s.size:
            recording.take(FirstToken(number, EPOCH_S + float(one.token_times_s[0])))
            end_s = EPOCH_S + float(one.token_times_s[-1])
            recording.take(RequestEnded(number, end_s, True, one.token_times_s.size, one.num_preemptions, b""))
    steps = log.steps
    for i, load in enumerate(loads):
        end_s = EPOCH_S + float(steps.end_s[i])
        begin_s = end_s - float(steps.duration_s[i])
        recording.take(
            Stepped(
                begin_s,
                end_s,
                load.prefill_tokens,
                load.num_prefills,
                load.decode_seqs,
                load.decode_context_tokens,
                load.prefill_attention_tokens2,
                load.draft_tokens or 0,
                int(steps.running[i]),
                int(steps.waiting[i]),
                0,
                log.counters.get("accepted_draft_tokens", 0) if i == len(loads) - 1 else 0,
            )
        )
    return recording


def _contents(request: WorkloadRequest) -> bytes:
    """Return the hashes of the whole stretches of a prompt, each of all tokens up to its end."""
    whole = request.prompt_tokens // STRETCH
    return b"".join(blake2b(repr(request.prefix_ids[: i + 1]).encode(), digest_size=8).digest() for i in range(whole))


def engine_facts(settings: EngineSettings = ENGINE) -> dict[str, Any]:
    """Return the sizes of an engine as a recording has them."""
    drafts = settings.drafts
    return {
        "model": "m",
        "sloserve": "0",
        "vllm": "0.32.0",
        "kv_blocks": settings.kv_blocks,
        "block_size": settings.block_size,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_model_len": settings.max_model_len,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "enable_chunked_prefill": True,
        "async_scheduling": True,
        "num_speculative_tokens": settings.num_drafts,
        "draft_layers": drafts is not None and drafts.has_layers,
        "tensor_parallel_size": 1,
    }


def until(recording: Recording, end_s: float) -> Recording:
    """Return what a recording held at a time, in seconds from its start."""
    end_s += EPOCH_S
    return replace(
        recording,
        arrived={number: one for number, one in recording.arrived.items() if one.at_s <= end_s},
        first_token_s={number: at_s for number, at_s in recording.first_token_s.items() if at_s <= end_s},
        ended={number: one for number, one in recording.ended.items() if one.at_s <= end_s},
        steps=[one for one in recording.steps if one.end_s <= end_s],
    )


def written(recording: Recording, folder: Path, name: str = "run-1-rank0") -> Path:
    """Write a recording into a folder, as a server does."""
    writer = SegmentWriter(folder, name, 64 << 20)
    events: list[Event] = [*recording.arrived.values(), *recording.ended.values(), *recording.steps]
    events += [FirstToken(number, at_s) for number, at_s in recording.first_token_s.items()]
    for first in range(0, len(events), 256):
        writer.write(events[first : first + 256], lambda: recording.head)
    writer.close()
    return folder
