"""A replay of what ran comes to what was recorded, and policies see no more than they could know."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.promises import PromiseWish
from sloserve.core.request import OUTPUT_ID
from sloserve.core.runlog import RunLog
from sloserve.engine.recording.events import PoliciesChanged
from sloserve.engine.recording.reading import Recording
from sloserve.engine.virtual.drafts import Drafts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.sim.replay.engine_of import engine_settings, fitted_steps
from sloserve.sim.replay.judged import (
    difference,
    ended_ids,
    recorded_fates,
    replay_error,
    replayed_fates,
)
from sloserve.sim.replay.replay import Replayed, check_name
from sloserve.sim.replay.traffic import policy_of, span_of, traffic
from tests.sim.replay.played import CLASSES, ENGINE, EPOCH_S, PROFILE, chats, played, until, workload


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "rps"), [("fcfs", 15.0), ("edf", 18.0)])
def test_a_replay_of_what_ran_comes_to_what_was_recorded(policy: str, rps: float) -> None:
    recording, _ = played(workload(rps=rps), policy)
    span = span_of(recording, None)
    asked, fitted = traffic(recording, span), fitted_steps(recording)
    replayed = Replayed(recording, fitted, asked)
    real = recorded_fates(recording, asked)
    found = replay_error(real, [replayed_fates(replayed.run(policy, seed=seed), asked) for seed in range(3)])
    assert 0.2 < (real.in_time() or 0.0) and (policy == "edf" or (real.in_time() or 1.0) < 0.9)
    assert found.is_trusted, found
    assert abs(found.ttft_p50 or 1.0) < 0.08 and abs(found.ttft_p99 or 1.0) < 0.15
    assert engine_settings(recording) == ENGINE


@pytest.mark.slow
@pytest.mark.parametrize("has_layers", [True, False])
def test_drafts_beside_a_prefix_cache_are_replayed(has_layers: bool) -> None:
    """Requests find what they found, and get as many tokens a step."""
    engine = replace(ENGINE, enable_prefix_caching=True, drafts=Drafts(3, 0.8, spread=0.0, has_layers=has_layers))
    recording, log = played(chats(rps=22.0), "fcfs", settings=engine)
    found = engine_settings(recording)
    # A little less is found: the engine model accepts no drafts after the end of an output.
    assert found.drafts is not None and found.drafts.acceptance == pytest.approx(0.78, abs=0.02)
    assert replace(found, drafts=None) == replace(engine, drafts=None) and found.drafts.has_layers is has_layers
    asked = traffic(recording, span_of(recording, None))
    replayed = Replayed(recording, fitted_steps(recording), asked)
    again = replayed.run("fcfs", seed=0)
    cached = [sum(one.cached_tokens for one in run.requests) for run in (log, again)]
    assert cached[1] == pytest.approx(cached[0], rel=0.02) and cached[0] > 10_000
    real, fates = recorded_fates(recording, asked), replayed_fates(again, asked)
    error = replay_error(real, [fates])
    assert error.is_trusted, error
    assert abs(error.ttft_p50 or 1.0) < 0.1


@pytest.mark.slow
def test_promised_requests_come_first_in_a_replay_as_they_did_but_not_in_order_of_arrival() -> None:
    wish = PromiseWish(0.99, given_after_s=0.0)
    asked_for = [
        replace(one, slo=replace(one.slo, promise=wish)) if i % 5 == 0 else one
        for i, one in enumerate(workload(rps=24.0))
    ]
    recording, _ = played(asked_for, "edf")
    asked, fitted = traffic(recording, span_of(recording, None)), fitted_steps(recording)
    replayed = Replayed(recording, fitted, asked)

    def ttft_s(log: RunLog) -> tuple[float, float]:
        each = [(one.request.request_id, one.latency.ttft_s) for one in log.requests if one.latency is not None]
        promised = [seconds for name, seconds in each if int(name[1:]) % 5 == 1]
        return float(np.mean(promised)), float(np.mean([seconds for _, seconds in each]))

    first, every = ttft_s(replayed.run("edf", seed=0))
    assert first < 0.1 * every
    in_order, all_in_order = ttft_s(replayed.run("fcfs", seed=0))
    assert in_order == pytest.approx(all_in_order, rel=0.2)
    other = traffic(recording, span_of(recording, None), slos=CLASSES)
    assert not any(one.slo.promise for one in other.requests), "promises were given for the targets that were recorded"


@pytest.mark.slow
def test_the_gain_of_another_policy_is_foreseen() -> None:
    requests = workload(250, rps=18.0)
    recording, _ = played(requests, "fcfs")
    asked = traffic(recording, span_of(recording, None))
    replayed = Replayed(recording, fitted_steps(recording), asked)
    base, other = (
        [replayed_fates(replayed.run(name, seed=seed), asked) for seed in range(3)] for name in ("fcfs", "edf")
    )
    gain = difference(other, base)
    assert gain is not None and gain.low > 0.0
    truth = [np.mean([one.good for one in played(requests, name)[1].requests]) for name in ("fcfs", "edf")]
    assert gain.low - 3.0 <= 100.0 * (truth[1] - truth[0]) <= gain.high + 3.0


@pytest.mark.slow
def test_step_times_are_fitted_whatever_stalls() -> None:
    recording, _ = played(workload(rps=15.0), noise=0.1)
    fitted = fitted_steps(recording)
    for step in recording.steps[::50]:
        load = StepLoad(
            step.prefill_tokens,
            step.num_prefills,
            step.decode_seqs,
            step.decode_context_tokens,
            step.prefill_attention_tokens2,
        )
        assert fitted.profile.step_s(load) == pytest.approx(PROFILE.step_s(load), rel=0.15)


@pytest.mark.slow
def test_lengths_of_unfinished_requests_are_drawn_and_not_seen() -> None:
    whole, log = played(workload(rps=15.0))
    cut_s = 12.0
    cut = until(whole, cut_s)
    asked = traffic(cut, span_of(cut, None))
    unfinished = [one for one in asked.requests if int(one.request_id[1:]) not in cut.ended]
    assert len(unfinished) == asked.unfinished > 5
    true = {one.request.request_id: one.request.output_tokens for one in log.requests}
    assert [one.output_tokens for one in unfinished] != [true[one.request_id] for one in unfinished]
    assert all(one.output_tokens >= 1 for one in unfinished)
    begun = [one for one in unfinished if int(one.request_id[1:]) in cut.first_token_s]
    assert begun
    again = traffic(cut, span_of(cut, None))
    assert [one.output_tokens for one in again.requests] == [one.output_tokens for one in asked.requests]
    other = traffic(cut, span_of(cut, None), seed=1)
    assert [one.output_tokens for one in other.requests] != [one.output_tokens for one in asked.requests]
    judged = ended_ids(cut, asked)
    assert judged == {f"r{number}" for number in cut.ended}


@pytest.mark.slow
def test_the_window_is_of_one_policy_and_what_came_before_warms_up() -> None:
    recording, _ = played(workload(rps=15.0))
    recording.take(PoliciesChanged(EPOCH_S + 12.0, "edf", None))
    span = span_of(recording, 3600.0)
    assert span.begin_s == EPOCH_S + 12.0 and policy_of(recording, span) == "edf"
    asked = traffic(recording, span)
    assert 0 < len(asked.judged) < len(asked.requests)
    assert asked.epoch_s < span.begin_s
    rotated = replace(recording, policies=[], head=msgspec.structs.replace(recording.head, live=[30]))
    assert span_of(rotated, None).begin_s == recording.arrived[1].at_s  # it arrived before the first frame was written
    del rotated.arrived[30]
    assert span_of(rotated, None).begin_s == recording.ended[30].at_s  # how long it is was not recorded
    last = span_of(recording, 10.0)
    assert last.end_s - last.begin_s == pytest.approx(10.0, abs=1e-3)


@pytest.mark.slow
def test_requests_that_clients_gave_up_leave_when_they_left() -> None:
    recording, _ = played(workload(rps=15.0))
    number = 150
    end = recording.ended[number]
    left_s = recording.arrived[number].at_s + 0.01
    recording.ended[number] = type(end)(number, left_s, False, 0, 0, b"")
    del recording.first_token_s[number]
    asked = traffic(recording, span_of(recording, None))
    assert asked.left_s == {f"r{number}": pytest.approx(left_s - asked.epoch_s)}
    log = Replayed(recording, fitted_steps(recording), asked).run("edf")
    outcome = {one.request.request_id: one.outcome for one in log.requests}
    assert outcome[f"r{number}"] == "aborted" and set(outcome.values()) == {"aborted", "completed"}
    assert replayed_fates(log, asked).met.size == len(asked.requests) - 1


@pytest.mark.slow
def test_a_prompt_that_repeats_an_output_has_the_ids_of_both() -> None:
    """The second turn of a chat: 70 tokens of prompt, 80 of an output, 40 new ones; then a third chat with the first's
    beginning alone.
    """
    recording = _with_prompts()
    first, second, third = (one.prefix_ids for one in traffic(recording, span_of(recording, None)).requests[:3])
    assert first[-1] == OUTPUT_ID and len(first) == 5  # four whole blocks and 6 tokens
    assert second[:4] == first[:4]
    assert second[4:8] == (OUTPUT_ID,) * 4  # the second stretch begins with the last 6 tokens of the first prompt
    assert len(set(second[8:11])) == 3 and OUTPUT_ID not in second[8:11]
    assert third[:4] == first[:4] and third[4] not in second


def _with_prompts() -> Recording:
    recording, _ = played(workload(60, rps=1.0))
    a, b, c = (bytes([n]) * 8 for n in (1, 2, 3))
    head = recording.head
    head.engine["enable_prefix_caching"] = True
    prompts = {1: (70, a), 2: (190, a + b), 3: (90, a)}
    for number, (tokens, prompt) in prompts.items():
        one = recording.arrived[number]
        one.prompt_tokens, one.prompt = tokens, prompt
    end = recording.ended[1]
    end.contents = b + c
    for number in range(4, 61):
        recording.arrived[number].prompt = b""
    return recording


def test_a_policy_that_sees_what_nobody_knew_is_refused() -> None:
    check_name("edf")
    check_name("stock@max_num_seqs=64")
    with pytest.raises(ConfigError, match="length=oracle sees the lengths"):
        check_name("edf:length=oracle")
    with pytest.raises(ConfigError):
        check_name("no-such-policy")


def test_a_recording_with_too_few_steps_is_refused() -> None:
    recording, _ = played(workload(20))
    with pytest.raises(ConfigError, match="too few steps"):
        fitted_steps(replace(recording, steps=recording.steps[:3]))
    with pytest.raises(ConfigError, match="nothing to replay"):
        span_of(replace(recording, steps=[]), None)


@pytest.mark.slow
def test_other_targets_replace_the_recorded_ones() -> None:
    recording, _ = played(workload(100))
    asked = traffic(recording, span_of(recording, None), slos=CLASSES)
    assert {one.slo for one in asked.requests} <= {CLASSES.slo(name, CLASSES[name].targets) for name in CLASSES.names}
