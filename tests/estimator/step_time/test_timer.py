"""Durations of steps from a scripted engine that keeps two steps in flight, one, or waits idle."""

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.timer import StepTimer


def load(seqs: int) -> StepLoad:
    return StepLoad(decode_seqs=seqs, decode_context_tokens=100 * seqs)


def test_two_deep_pipeline_times_each_step_by_itself() -> None:
    """True durations 10, 20, 30, 5 ms; n+1 is scheduled right after n was, then n+2 when n's output is there."""
    timer = StepTimer()
    durations_ms = [10.0, 20.0, 30.0, 5.0]
    ends_ms = [10.0, 30.0, 60.0, 65.0]
    timer.scheduled(load(1), 0.0)
    found = []
    for n, end_ms in enumerate(ends_ms):
        if n + 1 < len(ends_ms):
            timer.scheduled(load(n + 2), (ends_ms[n - 1] if n else 0.0) / 1e3 + 1e-4)
            assert timer.in_flight == 2
        found.append(timer.output(end_ms / 1e3))
    assert [step and step[0].decode_seqs for step in found] == [1, 2, 3, 4]
    assert [round(step[1] * 1e3, 6) for step in found if step] == durations_ms
    assert timer.in_flight == 0


def test_synchronous_engine_is_timed_from_scheduling_so_that_idle_time_is_no_step() -> None:
    timer = StepTimer()
    for start_s in (0.0, 7.0):
        timer.scheduled(load(1), start_s)
        assert timer.output(start_s + 0.25) == (load(1), 0.25)


def test_slow_scheduling_is_part_of_the_pace() -> None:
    """The model takes 1 ms, scheduling 4 ms: an output is seen each 4 ms, and that is what a step costs."""
    timer = StepTimer()
    timer.scheduled(load(1), 0.004)
    times_s = []
    for n in range(2, 6):
        timer.scheduled(load(1), 0.004 * n)
        step = timer.output(0.004 * n)
        assert step is not None
        times_s.append(round(step[1], 9))
    assert times_s == [0.004] * 4


PROMPT = StepLoad(prefill_tokens=32, num_prefills=1, decode_seqs=4, decode_context_tokens=400)


def test_launching_a_prompt_is_not_charged_to_the_decodes_before_it() -> None:
    """Decodes take 7 ms. A prompt's step is launched for 12 ms, meanwhile theirs ends, and is over 1 ms later."""
    timer = StepTimer()
    timer.scheduled(load(4), 0.0)
    timer.scheduled(PROMPT, 0.001)
    assert timer.output(0.0135, launched_s=0.013, predicted_s=0.007) is None
    assert timer.started_s == 0.007
    timer.scheduled(load(4), 0.0136)
    step = timer.output(0.0155, launched_s=0.0140, predicted_s=0.010)
    assert step == (PROMPT, 0.0155 - 0.007)


def test_steps_that_are_all_launched_slowly_take_as_long_as_launching() -> None:
    """Each is launched for 12 ms and over 1 ms later, which nobody sees before the next one is launched, too."""
    timer, found = StepTimer(), []
    timer.scheduled(PROMPT, 0.0)
    for n in range(1, 5):
        timer.scheduled(PROMPT, 0.012 * n)
        step = timer.output(0.012 * n + 0.0121, launched_s=0.012 * n + 0.012, predicted_s=0.002)
        found.append(step and round(step[1], 9))
    assert found == [0.012] * 4


def test_an_output_that_was_waited_for_tells_when_its_step_ended() -> None:
    """Launching the next took 1 ms of the 7: whatever was predicted, the step took 7."""
    for predicted_s in (0.003, 0.020):
        timer = StepTimer()
        timer.scheduled(load(4), 0.0)
        timer.scheduled(load(4), 0.001)
        assert timer.output(0.007, launched_s=0.002, predicted_s=predicted_s) == (load(4), 0.007)


def test_an_output_that_was_waited_for_tells_it_however_long_launching_took() -> None:
    """Chunks of a prompt take 48 ms and are launched for 27: each output after the first is waited for."""
    timer, found = StepTimer(), []
    timer.scheduled(PROMPT, 0.0)
    ends_s = [0.054, 0.096, 0.144]
    for n, end_s in enumerate(ends_s):
        next_s = 0.027 if n == 0 else ends_s[n - 1]
        timer.scheduled(PROMPT, next_s)
        found.append(timer.output(end_s, launched_s=next_s + 0.027, predicted_s=0.048))
    assert found[0] is None, "over while the second was launched: as predicted, for all that is known"
    assert [round(step[1], 6) for step in found[1:] if step] == [0.048, 0.048]


def test_a_step_that_took_less_than_predicted_ended_when_its_output_was_seen() -> None:
    timer = StepTimer()
    timer.scheduled(load(4), 0.0)
    timer.scheduled(PROMPT, 0.001)
    assert timer.output(0.0135, launched_s=0.013, predicted_s=0.1) == (load(4), 0.0135)


def test_what_has_nothing_to_tell_is_none_and_keeps_the_order() -> None:
    timer = StepTimer()
    assert timer.output(1.0) is None, "scheduled before the timer was there"
    timer.scheduled(StepLoad(), 2.0)
    timer.scheduled(load(3), 2.0)
    assert timer.output(2.5) is None
    assert timer.output(3.0) == (load(3), 0.5)
    timer.scheduled(load(4), 10.0)
    assert timer.output(9.0) is None, "the clock was set back"
    timer.scheduled(load(5), 11.0)
    timer.forget()
    assert timer.in_flight == 0 and timer.output(12.0) is None
