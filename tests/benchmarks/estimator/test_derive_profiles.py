"""Profiles derived from data sheets: the rule, and that the shipped files are what it gives."""

import os
from pathlib import Path

import pytest

from benchmarks.estimator import derive_profiles
from benchmarks.estimator.derive_profiles import A100, DERIVED, LLAMA2_7B, LLAMA_33B, Setup, derive
from sloserve.estimator.step_time.profile import load_profile

ROOT = Path(__file__).parents[3]


def test_the_shipped_files_follow_from_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ.get("SLOSERVE_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / derive_profiles.FITS).is_file():
        pytest.skip(f"{derive_profiles.FITS} is not here; set SLOSERVE_DATA")
    monkeypatch.setenv("SLOSERVE_DATA", str(folder))
    shipped = ROOT / "benchmarks" / "estimator" / "profiles"
    for name, text in derive_profiles.texts(derive_profiles.checks()).items():
        assert (shipped / f"{name}.yaml").read_text() == text, name


@pytest.mark.parametrize("setup", DERIVED, ids=lambda setup: setup.name)
def test_a_derived_profile_says_that_no_step_was_measured(setup: Setup) -> None:
    error = load_profile(setup.name).error
    assert error.mape_percent is None and "no step was measured" in error.text


def test_the_rule_gives_the_reference_back() -> None:
    assert derive(Setup("", A100, 1, LLAMA2_7B, "")) == load_profile(derive_profiles.REFERENCE).latency


def test_tensor_parallel_divides_what_is_read_and_adds_all_reduces() -> None:
    one, two = (derive(Setup("", A100, n, LLAMA_33B, "")) for n in (1, 2))
    assert two.decode.context_token_ms == pytest.approx(one.decode.context_token_ms / 2)
    assert two.decode.base_ms == pytest.approx(one.decode.base_ms / 2 + 2 * 60 * 9e-3)
