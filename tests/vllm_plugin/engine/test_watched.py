"""What watchers are told of an engine: that it is so, that had it been otherwise the engine would have done otherwise,
and that being watched changes nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics import live_page
from sloserve.engine.metrics.live_page import ROW, Frame, LiveWriter, find_live_pages
from sloserve.engine.recording.reading import read_recording, recordings
from sloserve.engine.why import RequestPhase, Why
from sloserve.vllm_plugin.engine.recorded import Recorded
from tests.whole import sampled

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]
AT = {name: place for place, name in enumerate(ROW)}


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Frame]]:
    """Runs a workload; returns the frames of its steps, the first of those at each moment."""
    monkeypatch.setattr(live_page, "WATCH_S", 1e9)
    folders = (tmp_path / str(i) for i in range(99))

    def run(engine: Any, workload: list[WorkloadRequest], every_s: float = 0.0) -> list[Frame]:
        monkeypatch.setattr("sloserve.vllm_plugin.engine.watched.FRAME_EVERY_S", every_s)
        folder = next(folders)
        folder.mkdir()
        engine.scheduler.show_on(LiveWriter(len(DEFAULT_CLASSES.names), 0, folder))
        (reader,) = find_live_pages(folder)
        reader.watch(0.0)
        frames: list[Frame] = []

        def step(_output: Any) -> None:
            frame = reader.frame()
            if frame is not None and (not frames or frame.at_monotonic_s > frames[-1].at_monotonic_s):
                frames.append(frame)

        engine.on_step = step
        engine.run(workload)
        assert engine.scheduler.slo_counters["internal_errors"] == 0
        return frames

    return run


def row(frame: Frame, number: int) -> dict[str, float]:
    """A request's row; numbers are handed out in the order in which requests are first seen."""
    (found,) = frame.rows[frame.rows[:, AT["number"]] == number]
    return dict(zip(ROW, found.tolist(), strict=True))


def phase(frame: Frame, number: int) -> RequestPhase:
    return RequestPhase(int(row(frame, number)["phase"]))


Watch = Callable[..., list[Frame]]


def test_what_is_drawn_is_what_the_engine_does(build: Build, request_of: RequestOf, watch: Watch) -> None:
    work = [request_of("a", 0.0, 150, 6, ttft_s=2.0), request_of("b", 0.0, 20, 6, slo_class="batch")]
    frames = watch(build("edf"), work)
    first = frames[0]
    assert (first.live, first.total_blocks, first.foreseen) == (2, 40, None)
    assert [phase(first, n) for n in (1, 2)] == [RequestPhase.PREFILL, RequestPhase.WAITING]
    a, b = row(first, 1), row(first, 2)
    assert (a["prompt_tokens"], a["computed_tokens"], a["due_s"] - a["arrival_s"]) == (150, 64, 2.0)
    assert np.isnan(b["due_s"]) and (a["ahead"], b["ahead"]) == (-1, 0)
    assert first.counts.sum() == 2 and first.counts[int(b["class_id"]), RequestPhase.WAITING] == 1
    assert first.next_due_s[int(a["class_id"])] == a["due_s"]
    later = next(frame for frame in frames if frame.live and phase(frame, 1) == RequestPhase.DECODE)
    assert row(later, 1)["output_tokens"] >= 1
    assert frames[-1].live == 0 and frames[-1].rows.size == 0  # the last step is shown, whenever it comes


HELD: dict[Why, tuple[dict[str, Any], dict[str, Any], list[tuple[int, int]]]] = {
    # Sizes of the engine, what to change of them, prompts and replies. The last request waits.
    Why.TOKENS: ({}, {"max_num_batched_tokens": 128}, [(64, 4), (64, 4)]),
    Why.PLACES: ({"max_num_seqs": 2}, {"max_num_seqs": 3}, [(8, 40), (8, 40), (8, 4)]),
    Why.BLOCKS: ({"kv_blocks": 12, "max_model_len": 128}, {"kv_blocks": 40}, [(60, 60), (60, 60), (100, 4)]),
}


@pytest.mark.parametrize("why", HELD)
@pytest.mark.parametrize("policy", ["fcfs", "edf:preempt=false"])
def test_what_holds_up_the_first_would_have_let_it_in_had_there_been_more(
    build: Build, request_of: RequestOf, watch: Watch, why: Why, policy: str
) -> None:
    size, more, sizes = HELD[why]
    work = [request_of(f"r{i}", 0.0, prompt, output, e2e_s=9.0 + i) for i, (prompt, output) in enumerate(sizes)]
    last = len(sizes)
    section = {"policy_options": {"preempt": False}} if "edf" in policy else None
    name = policy.partition(":")[0]
    frames, freed = (watch(build(name, section=section, **sizes_used), work) for sizes_used in (size, {**size, **more}))
    place = next(i for i, frame in enumerate(frames) if frame.head.why == why)
    head = frames[place].head
    assert phase(frames[place], last) == RequestPhase.WAITING and row(frames[place], last)["ahead"] == 0
    taken, least = head.figure, head.of
    assert taken >= least if why != Why.BLOCKS else taken > least
    assert phase(freed[place], last) != RequestPhase.WAITING


def test_no_step_waits_for_its_frame(build: Build, request_of: RequestOf, watch: Watch) -> None:
    engine, written, early = build("edf"), [], []
    schedule = engine.scheduler.schedule

    def scheduled() -> Any:
        output, before = schedule(), len(written)
        early.extend(written[before:] if output.total_num_scheduled_tokens else [])
        return output

    engine.scheduler.schedule = scheduled
    begin = engine.scheduler.show_on

    def show_on(page: LiveWriter) -> None:
        begin(page)
        watched = engine.scheduler._observers.watched
        write = watched.write
        watched.write = lambda *step: (written.append(step[0]), write(*step))

    engine.scheduler.show_on = show_on
    frames = watch(engine, [request_of("a", 0.0, 150, 6), request_of("b", 0.0, 20, 6)])
    assert len(frames) > 5 and len(written) >= len(frames) and early == []


def test_a_limit_of_the_plan_is_told_and_another_lets_the_request_in(
    build: Build, request_of: RequestOf, watch: Watch
) -> None:
    from sloserve.scheduler.policy import Plan, Policy, Snapshot

    class AtMost(Policy):
        needs = frozenset({"arrival_s"})
        most = 1

        def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
            return Plan(max_running=self.most)

    work = [request_of("a", 0.0, 8, 20), request_of("b", 0.0, 8, 20)]
    held, free = AtMost(), AtMost()
    free.most = 2
    frames, freed = (watch(build(policy), work) for policy in (held, free))
    assert (frames[0].head.why, frames[0].head.figure, frames[0].head.of) == (Why.LIMIT, 1, 1)
    assert phase(frames[0], 2) == RequestPhase.WAITING and phase(freed[0], 2) == RequestPhase.PREFILL


def test_who_waits_behind_others_goes_first_with_an_earlier_deadline(
    build: Build, request_of: RequestOf, watch: Watch
) -> None:
    def ahead(e2e_s: float) -> float:
        work = [request_of(f"r{i}", 0.0, 8, 30, e2e_s=5.0) for i in range(4)]
        work += [request_of(f"w{i}", 0.0, 8, 4, e2e_s=20.0 + i) for i in range(3)]
        work += [request_of("last", 0.0, 8, 4, e2e_s=e2e_s)]
        frames = watch(build("edf:preempt=false"), work)
        return row(frames[1], 8)["ahead"]

    assert (ahead(30.0), ahead(21.5), ahead(15.0)) == (3, 2, 0)


def test_a_request_that_the_policy_has_given_up_is_told_so_and_a_later_deadline_gets_it_a_place(
    build: Build, request_of: RequestOf, watch: Watch
) -> None:
    """Two batch requests hold both places; a request that is due at once cannot be in time, and preempts neither."""

    def urgent_rows(ttft_s: float) -> list[dict[str, float]]:
        work = [request_of(f"jobs{i}", 0.0, 8, 60, slo_class="batch") for i in range(2)]
        work += [request_of("urgent", 0.2, 8, 4, ttft_s=ttft_s)]
        frames = watch(build("auto", max_num_seqs=2), work)
        return [row(frame, 3) for frame in frames if (frame.rows[:, 0] == 3).any()]

    waits = [one for one in urgent_rows(0.001) if one["phase"] == RequestPhase.WAITING]
    assert len(waits) > 5 and all(one["missed"] == 1.0 for one in waits[1:])
    assert {(one["why"], one["figure"], one["of"]) for one in waits[1:]} == {(Why.GIVEN_UP, 0, 2)}
    assert sum(one["phase"] == RequestPhase.WAITING for one in urgent_rows(0.2)) < len(waits) / 2


def test_a_decode_is_lost_once_its_longest_output_would_be_too_slow(
    build: Build, request_of: RequestOf, watch: Watch
) -> None:
    """It counted as one that can still be in time until it ended."""

    def decoding(max_tokens: int | None = 30, **targets: float) -> list[tuple[float, dict[str, float]]]:
        slo = DEFAULT_CLASSES.slo(None, Targets(**targets))
        frames = watch(build("edf"), [replace(request_of("a", 0.0, 8, 30, max_tokens=max_tokens), slo=slo)])
        rows = [(frame, row(frame, 1)) for frame in frames if frame.live]
        assert [frame.missed.sum() for frame, _ in rows] == [one["missed"] for _, one in rows]
        return [(frame.at_s, one) for frame, one in rows if one["phase"] == RequestPhase.DECODE]

    assert not any(one["missed"] for _, one in decoding(tpot_s=9.0))
    assert not any(one["missed"] for _, one in decoding(None, tpot_s=0.004)), "many more tokens may come, and faster"
    for targets in ({"tpot_s": 0.004}, {"tds": 250.0, "tpot_s": 1.0}):
        rows = decoding(**targets)
        first_s = rows[0][0]
        lost = [one["missed"] == 1.0 for _, one in rows]
        assert lost == [at_s - first_s > 0.004 * 29 for at_s, _ in rows] and not lost[0] and lost[-1]


@pytest.mark.parametrize(
    ("policy", "gives_up"),
    [("edf:preempt=false", True), ("edf:preempt=false:late_last=false", False), ("econo", False)],
)
def test_only_a_policy_that_serves_late_requests_last_has_given_one_up(
    build: Build, request_of: RequestOf, watch: Watch, policy: str, gives_up: bool
) -> None:
    work = [request_of(f"r{i}", 0.0, 8, 30, e2e_s=50.0) for i in range(4)]
    work += [request_of(f"late{i}", 0.0, 8, 4, ttft_s=0.001) for i in range(3)]
    frame = watch(build(policy, max_num_seqs=3), work)[1]
    queued = frame.rows[:, ROW.index("ahead")] > 0
    assert queued.any() and (Why.GIVEN_UP in frame.rows[queued, ROW.index("why")]) == gives_up


def test_every_request_of_the_queue_says_what_goes_before_it(build: Build, request_of: RequestOf, watch: Watch) -> None:
    work = [request_of(f"r{i}", 0.0, 8, 30, e2e_s=5.0) for i in range(4)]
    work += [request_of("job", 0.0, 8, 4, slo_class="batch"), request_of("chat", 0.0, 8, 4)]
    frame = watch(build("edf:preempt=false", max_num_seqs=3), work)[1]
    found = [(row(frame, n)["why"], row(frame, n)["figure"], row(frame, n)["of"]) for n in (4, 6, 5)]
    assert found[0] == (Why.PLACES, 3, 3)
    assert found[1][:2] == (Why.QUEUE, 1)
    assert found[2] == (Why.CLASS, 2, 2)


@pytest.mark.parametrize("rows", [64, 1], ids=["roomy", "grows with the rival"])
def test_a_preemption_names_the_request_it_was_for_and_how_much_earlier_that_is_due(
    build: Build, request_of: RequestOf, watch: Watch, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.engine.live_numbers._ROWS", rows)

    def frames(e2e_s: float) -> list[Frame]:
        work = [request_of("lax", 0.0, 20, 60, e2e_s=e2e_s)]
        work += [request_of("urgent", 0.05, 20, 4, e2e_s=3.0)]
        return watch(build("edf", max_num_seqs=1), work)

    told = [row(frame, 1) for frame in frames(50.0) if frame.live and (frame.rows[:, 0] == 1).any()]
    (cause,) = {(one["why"], one["figure"], one["of"]) for one in told if one["phase"] == RequestPhase.PREEMPTED}
    assert cause[:2] == (Why.PLAN, 2) and cause[2] == pytest.approx(50.0 - 3.05)
    # Had its deadline come first, the other would not have taken its place.
    assert not any(frame.counts[:, RequestPhase.PREEMPTED].any() for frame in frames(2.9))


def test_kv_that_runs_short_is_told_apart_from_a_plan(build: Build, request_of: RequestOf, watch: Watch) -> None:
    work = [request_of("a", 0.0, 30, 80), request_of("b", 0.0, 30, 80)]
    frames, roomy = (watch(build("fcfs", kv_blocks=blocks, max_model_len=128), work) for blocks in (10, 40))
    lost = [row(frame, 2) for frame in frames if frame.counts[:, RequestPhase.PREEMPTED].any()]
    assert lost and {one["why"] for one in lost} == {Why.KV_SHORT} and lost[0]["preemptions"] == 1
    assert not any(frame.counts[:, RequestPhase.PREEMPTED].any() for frame in roomy)


def test_a_pause_says_how_far_ahead_of_its_reader_a_request_is(
    build: Build, request_of: RequestOf, watch: Watch
) -> None:
    from sloserve.core.arrays import IntArray
    from sloserve.scheduler.policy import NO_SLOTS, Plan, Policy, Snapshot

    class PauseAhead(Policy):
        """Pauses the first request while it is more than five tokens ahead of its reader."""

        needs = frozenset({"tds", "first_token_s", "output_tokens"})

        def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
            rows, slots = snapshot.rows, snapshot.running
            read = (now_s - rows.first_token_s[slots]) * rows.tds[slots] + 1
            pause: IntArray = slots[rows.output_tokens[slots] - read > 5.0]
            return Plan(pause=pause if pause.size < slots.size else NO_SLOTS)

    def paused(tds: float) -> list[dict[str, float]]:
        slow = DEFAULT_CLASSES.slo(None, Targets(tds=tds))
        work = [WorkloadRequest("a", 0.0, 8, 60, slow), request_of("b", 0.0, 8, 60)]
        frames = watch(build(PauseAhead()), work)
        rows = [row(frame, 1) for frame in frames if (frame.rows[:, 0] == 1).any()]
        return [one for one in rows if one["phase"] == RequestPhase.PAUSED]

    found = paused(1.0)
    assert found and {one["why"] for one in found} == {Why.PAUSE} and all(one["figure"] > 4.0 for one in found)
    assert not paused(5000.0)


def test_a_prompt_that_lets_others_pass_says_so(build: Build, request_of: RequestOf, watch: Watch) -> None:
    """With 16 tokens a step the short prompt would be late behind the 150 tokens, and has time before them."""
    work = [request_of("a", 0.0, 150, 6, ttft_s=2.0), request_of("b", 0.001, 12, 6, ttft_s=0.04)]
    engine = build("fcfs:step_budget=true", max_num_batched_tokens=16)
    frames = [frame for frame in watch(engine, work) if frame.live]
    found = [row(frame, 1) for frame in frames if (frame.rows[:, AT["number"]] == 1).any()]
    passed = [one for one in found if one["phase"] == RequestPhase.PAUSED]
    assert passed and {one["why"] for one in passed} == {Why.PASSED}
    assert {one["output_tokens"] for one in passed} == {0.0}


def test_the_kv_cache_is_foreseen_by_the_lengths_that_the_policy_knows(
    build: Build, request_of: RequestOf, watch: Watch
) -> None:
    work = [request_of(f"r{i}", 0.3 * i, 16, 40, e2e_s=20.0) for i in range(12)]
    frames = [frame for frame in watch(build("auto"), work) if frame.foreseen is not None and frame.live]
    assert frames
    mean, sigma = frames[-1].foreseen  # type: ignore[misc]
    used = frames[-1].total_blocks - frames[-1].free_blocks
    assert mean[0] == pytest.approx(used, abs=2.0 * frames[-1].live) and (sigma >= 0).all()
    assert mean[-1] < mean[0]  # they end within 64 steps
    assert all(frame.foreseen is None for frame in watch(build("fcfs"), work))


def test_a_prefix_that_all_share_is_foreseen_once(build: Build, request_of: RequestOf, watch: Watch) -> None:
    """Eight requests of 64 + 3 blocks, of which 64 are common, on 120 blocks."""
    size = {"kv_blocks": 120, "max_num_seqs": 8, "max_model_len": 1920, "max_num_batched_tokens": 2048}
    work = [request_of(f"r{i}", 0.5 * (i > 0), 1024 + 8, 40, prefix_ids=(1, 2, 3 + i)) for i in range(8)]
    frames = watch(build("auto", enable_prefix_caching=True, **size), work)
    full = [frame for frame in frames if frame.foreseen is not None and frame.live >= 6]
    assert full
    for frame in full:
        assert frame.foreseen[0][0] < frame.total_blocks


def test_numbers_are_of_this_engine_and_say_nothing_of_ids(build: Build, request_of: RequestOf, watch: Watch) -> None:
    work = [request_of(f"secret-{i}", 0.1 * i, 8, 6) for i in range(90)]
    frames = watch(build("edf"), work)
    numbers = np.unique(np.concatenate([frame.rows[:, AT["number"]] for frame in frames]))
    assert numbers.tolist() == list(range(1, 91))


def test_a_recorded_request_has_its_number_in_the_recording(
    build: Build, request_of: RequestOf, watch: Watch, tmp_path: Path
) -> None:
    engine = build("edf")
    recorded = Recorded(engine.scheduler, tmp_path / "recording", "run", 1 << 22, engine.scheduler._clock)
    engine.scheduler.record(recorded)
    frames = watch(engine, [request_of(f"r{i}", 0.001 * i, 8 + i, 400) for i in range(20)], every_s=1.0)
    recorded.close()
    ((_, paths),) = recordings(tmp_path / "recording").items()
    arrived = read_recording(paths).arrived
    shown = np.concatenate([frame.rows[:, [AT["number"], AT["prompt_tokens"]]] for frame in frames])
    assert len(np.unique(shown[:, 0])) > 5
    assert all(arrived[int(number)].prompt_tokens == tokens for number, tokens in shown.tolist())


def test_frames_are_half_a_second_apart(build: Build, request_of: RequestOf, watch: Watch) -> None:
    work = [request_of(f"r{i}", 0.05 * i, 8, 60) for i in range(40)]
    frames = watch(build("edf"), work, every_s=0.5)
    at_s = np.array([frame.at_monotonic_s for frame in frames])
    assert at_s.size > 3 and (np.diff(at_s)[:-1] >= 0.5).all()


@pytest.mark.parametrize("policy", sampled(["fcfs", "edf", "auto", "andes", "econo"], ["edf", "auto"]))
def test_being_watched_changes_no_decision(build: Build, request_of: RequestOf, watch: Watch, policy: str) -> None:
    work = [
        request_of(f"r{i}", 0.02 * (i // 3), 10 + 37 * i % 110, 5 + 11 * i % 60, e2e_s=None if i % 4 else 1.0 + i % 7)
        for i in range(60)
    ]
    seen = build(policy, kv_blocks=24)
    watch(seen, work)
    unseen = build(policy, kv_blocks=24)
    log = unseen.run(work)
    again = seen.log(work)
    assert [one.token_times_s.tolist() for one in again.requests] == [
        one.token_times_s.tolist() for one in log.requests
    ]
    assert seen.scheduler.slo_counters == unseen.scheduler.slo_counters
