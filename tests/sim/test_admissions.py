"""Admissions by name: what a name means, and that each policy runs under each."""

from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.sim.admissions import make_engine, make_front, parse_admission, run_names, split_run
from sloserve.vllm_plugin.virtual.settings import EngineSettings


def test_every_policy_runs_under_every_admission_and_first_under_none() -> None:
    names = run_names(["stock", "edf"], ["predict", "none", "cap:max_waiting=4"])
    assert names == (
        "stock", "stock+predict", "stock+cap:max_waiting=4", "edf", "edf+predict", "edf+cap:max_waiting=4",
    )  # fmt: skip
    assert [split_run(name) for name in names[2:4]] == [("stock", "cap:max_waiting=4"), ("edf", "none")]


def test_what_names_mean() -> None:
    predict, _ = parse_admission("predict:min_chance=0.1:max_waiting=7")
    assert (predict.mode, predict.min_chance, predict.cap("batch")) == ("predict", 0.1, 7)
    engine = make_engine(EngineSettings(2000), "vllm:max_num_queued_tokens=16000")
    assert (engine.max_num_queued_tokens, engine.max_num_queued_reqs) == (16000, None)
    assert make_front("none", DEFAULT_CLASSES.names).waiting("batch") == 0
