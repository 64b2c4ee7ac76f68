"""Names of runs: policy, engine options and admission are told apart, and an engine is what its run's name says."""

import pytest

from sloserve.core.errors import ConfigError
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.run_name import RunName, run_names

FULL = "edf:preempt=true@max_num_batched_tokens=1024:max_num_seqs=128+cap:max_waiting=16"


def test_every_policy_runs_under_every_admission_and_first_under_none() -> None:
    names = run_names(["stock", "edf"], ["predict", "none", "cap:max_waiting=4"])
    assert names == (
        "stock", "stock+predict", "stock+cap:max_waiting=4", "edf", "edf+predict", "edf+cap:max_waiting=4",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("stock", ("stock", {}, "none")),
        ("stock@max_num_seqs=64", ("stock", {"max_num_seqs": 64}, "none")),
        (
            "edf@swap_space_gib=16:link_gb_per_s=2.5:swapping=always",
            ("edf", {"swap_space_gib": 16, "link_gb_per_s": 2.5, "swapping": "always"}, "none"),
        ),
        ("edf+predict:min_chance=0.1", ("edf", {}, "predict:min_chance=0.1")),
        (FULL, ("edf:preempt=true", {"max_num_batched_tokens": 1024, "max_num_seqs": 128}, "cap:max_waiting=16")),
    ],
)
def test_parts_of_a_name_and_back(text: str, parts: tuple[str, dict[str, int], str]) -> None:
    run = RunName.parse(text)
    assert (run.policy, run.engine, run.admission) == parts
    assert str(run) == text
    assert str(run.unrestricted) == text.partition("+")[0]


def test_a_run_s_swap_space_is_its_own_and_stock_has_none() -> None:
    shared = EngineSettings(2000, swap_space_gib=8.0)
    assert RunName.parse("edf@swap_space_gib=16").engine_settings(shared).swap_space_gib == 16
    assert RunName.parse("edf").engine_settings(shared) == shared
    assert RunName.parse("stock").engine_settings(shared).swap_space_gib == 0


def test_a_run_s_engine() -> None:
    shared = EngineSettings(2000, max_num_seqs=8)
    engine = RunName.parse("sjf@max_num_batched_tokens=512+vllm:max_num_queued_tokens=16000").engine_settings(shared)
    assert engine == EngineSettings(2000, max_num_seqs=8, max_num_batched_tokens=512, max_num_queued_tokens=16000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("edf@max_num_seq=4", "'max_num_seq' is unknown; known here: .*swapping; did you mean 'max_num_seqs'"),
        ("edf@kv_blocks=4", "'kv_blocks' is unknown"),
        ("stock@max_num_seqs=many", "max_num_seqs: 'many' is not a whole number >= 1"),
        ("stock@max_num_seqs=0", "max_num_seqs: '0' is not a whole number >= 1"),
        ("edf@swap_space_gib=much", "swap_space_gib: 'much' is not a number"),
        ("edf@swap_space_gib=-1", "swap_space_gib: -1.0 is not a number of GiB >= 0"),
        ("edf@swap_space_gib=inf", "swap_space_gib: 'inf' is not a number in ASCII digits"),
        ("edf@link_gb_per_s=0", "link_gb_per_s: 0 is not a number of GB/s above 0"),
        ("edf@swapping=never", "swapping: 'never' is not one of cost, always"),
        ("stock@swap_space_gib=4", "stock never swaps; fcfs is its order with swapping"),
        ("stock@max_num_seqs", "not of the form option=value"),
        ("stock@max_num_batched_tokens=100", "max_num_batched_tokens: 100 is below max_num_seqs, 256"),
    ],
)
def test_engine_options_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunName.parse(text).engine_settings(EngineSettings(2000))
