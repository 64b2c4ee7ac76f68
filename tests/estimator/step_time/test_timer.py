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
