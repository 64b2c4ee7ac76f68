"""Admissions by name: what a name means."""

from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.admissions import limit_queue, make_front, parse_admission


def test_what_names_mean() -> None:
    predict, _ = parse_admission("predict:min_chance=0.1:max_waiting=7")
    assert (predict.mode, predict.min_chance, predict.cap("batch")) == ("predict", 0.1, 7)
    engine = limit_queue(EngineSettings(2000), "vllm:max_num_queued_tokens=16000")
    assert (engine.max_num_queued_tokens, engine.max_num_queued_reqs) == (16000, None)
    assert make_front("none", DEFAULT_CLASSES.names).waiting("batch") == 0
