"""Mistakes in options name the flag that the user wrote, its value, what is allowed, and the remedy."""

import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError

SIMULATE = ("simulate", "--engine", "model", "--workload", "chat-batch-mix")
BENCH = ("bench", "--url", "http://127.0.0.1:9", "--workload", "chat-batch-mix")
DRAFTS = "--num-speculative-tokens=2"

WRONG = [
    (SIMULATE, ["--rps=-1"], "--rps: -1 is not a number above 0"),
    (SIMULATE, ["--rps=2,2"], "--rps: 2,2: give at least one value, each once"),
    (SIMULATE, ["--load=0"], "--load: 0 is not a number above 0"),
    (SIMULATE, ["--rate-scale=-2.5"], "--rate-scale: -2.5 is not a number above 0"),
    (SIMULATE, ["--kv-blocks=0"], "--kv-blocks: 0 is not a whole number >= 1"),
    (SIMULATE, ["--max-num-seqs=-3"], "--max-num-seqs: -3 is not a whole number >= 1"),
    (SIMULATE, ["--swap-space-gib=-1"], "--swap-space-gib: -1.0 is not a number of GiB >= 0"),
    (SIMULATE, ["--swapping=no"], "--swapping: 'no' is not one of cost, always"),
    (SIMULATE, ["--num-speculative-tokens=-1"], "--num-speculative-tokens: -1 is not a whole number of 1 to 64"),
    (SIMULATE, [DRAFTS, "--draft-acceptance=2"], "--draft-acceptance: 2.0 is not a probability within 0..1"),
    (SIMULATE, ["--known-profile=no"], "--known-profile: unknown profile 'no'"),
    (SIMULATE, ["--profile=no"], "--profile: unknown profile 'no'"),
    (SIMULATE, ["--slo=readin"], "--slo: 'readin' is not one of default, reading, voice, scaled, and there is no file"),
    (SIMULATE, ["--policy="], "--policy, --admission: name at least one of each"),
    (SIMULATE, ["--policy=edf,edf"], "--policy: edf, edf names a policy twice"),
    (BENCH, ["--rps=-1"], "--rps: '-1' is not a list of different numbers above 0"),
    (BENCH, ["--rate-scale=-1"], "--rate-scale: -1 is not a number above 0"),
    (BENCH, ["--profile=no"], "--profile: unknown profile 'no'"),
    (BENCH, ["--goodput=ttft:-1"], "--goodput: ttft: '-1' is not a number of milliseconds above 0"),
    (("advise", "--workload", "chat-batch-mix"), ["--rps=-1"], "--rps: -1 is not a number above 0"),
    (("simulate",), ["--workload=no"], "--workload: unknown workload 'no'"),
]


@pytest.mark.parametrize(("command", "given", "message"), WRONG)
def test_the_flag_and_its_value_are_named(command: tuple[str, ...], given: list[str], message: str) -> None:
    found = CliRunner().invoke(app, [*command, *given]).exception
    assert isinstance(found, ConfigError) and str(found).startswith(message), found
