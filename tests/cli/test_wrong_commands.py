"""What an operator gets for a wrong command: one line that names the remedy, before anything large is loaded."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forked_commands import ForkedCommands, forked_commands, run_afresh
from tests.whole import WHOLE

CPU_S = 3.0
"""Most CPU seconds that an answer may take. It takes 0.2 to 1.3; loading vLLM alone takes 8."""

FLEET = "configs/fleet-tiny.yaml"
EDGE = ("edge", "--upstream", "https://127.0.0.1:1")

WRONG = {
    "no model": (["serve"], "no model given; name one, a folder, or builtin:tiny"),
    "no such folder": (["serve", "/no/such"], "model /no/such: there is no such folder or file; give one, or"),
    "a flag of vLLM mistyped": (["serve", "m", "--max-model-lne", "9"], "did you mean --max-model-len?"),
    "a flag of ours mistyped": (["serve", "m", "--polcy", "edf"], "no such flag: --polcy; did you mean --policy?"),
    "a port taken": (["serve", "m", "--port", "TAKEN"], "Address already in use; choose another with --port or"),
    "a port that is not a number": (["serve", "m", "--port", "x"], "argument --port: invalid int value: 'x'"),
    "no such policy": (["serve", "m", "--policy", "edff"], "unknown policy 'edff'; installed: "),
    "no such option": (["serve", "m", "--policy", "edf:sped=1"], "policy 'edf' has no option 'sped'"),
    "nothing to check": (["check-config"], "nothing to check; name a FILE, a --preset, or flags of serve"),
    "flags without a file": (["check-config", "--max-waiting", "5"], "add --admission cap"),
    "no fleet file": (["fleet", "no.yaml"], "no.yaml: cannot be read: No such file or directory"),
    "a fleet's port": (["fleet", FLEET, "--state", "STATE", "--port", "99999"], "gateway: cannot listen on 127.0.0.1"),
    "an edge's port taken": ([*EDGE, "--port", "TAKEN"], "cannot listen on 127.0.0.1 port"),
    "an edge's certificate": ([*EDGE, "--ssl-certfile", "no", "--ssl-keyfile", "no"], "no PEM certificate and key"),
    "a profile without a model": (["profile"], "no model given; name one, a folder, or builtin:tiny"),
    "an option's value": (["serve", "m", "--policy", "edf:step_budget=maybe"], "'maybe' is not true or false"),
    "no such preset": (
        ["serve", "m", "--preset", "no"],
        "--preset: 'no' is not one of agents, chat, chat-and-jobs, readers",
    ),
    "no settings file": (
        ["serve", "m", "--slo-config", "no.yaml"],
        "no.yaml: cannot be read: No such file or directory",
    ),
    "an unknown setting": (["serve", "m", "--slo-config", "BAD"], ":1:1: polcy: is unknown; known here: policy, "),
    "swap space below zero": (
        ["serve", "m", "--swap-space-gib", "-1"],
        "is not a number of GiB >= 0; 0 turns swapping off",
    ),
    "a flag of simulate mistyped": (
        ["simulate", "--polcy", "edf"],
        "no such flag: --polcy; did you mean --policy? See sloserve simulate --help",
    ),
    "a value that is not a number": (
        ["simulate", "--seeds", "x"],
        "Invalid value for '--seeds': 'x' is not a whole number in ASCII digits",
    ),
    "a command mistyped": (["serv"], "no such command: serv; did you mean serve? See sloserve --help"),
    "a command in capitals": (["SERVE", "m"], "no such command: SERVE; did you mean serve? See sloserve --help"),
    "a policy in capitals": (["serve", "m", "--policy", "EDF"], "did you mean 'edf'?"),
    "a part of a fleet mistyped": (["fleet", "agnet", FLEET], "no such command: agnet; did you mean agent? See"),
    "a fleet's file as settings": (
        ["check-config", FLEET],
        "this is a fleet's file, not a settings file of a server; use sloserve fleet configs/fleet-tiny.yaml",
    ),
    "a fleet's file as a model": (["serve", FLEET], "this is a fleet's file, not a model; use sloserve fleet"),
    "settings as a fleet": (
        ["fleet", "configs/tenants.yaml"],
        "use sloserve serve MODEL --slo-config configs/tenants.yaml",
    ),
    "an SLO file as settings": (
        ["serve", "m", "--slo-config", "configs/slo-10s.yaml"],
        "this is an SLO file of a workload, not a settings file of a server; use sloserve simulate --slo",
    ),
    "a fleet's keys for a server": (
        ["serve", "m", "--keys", "configs/keys.yaml"],
        "this is a fleet's file of keys, not a server's file of keys; use sloserve fleet FILE --keys",
    ),
    "a router's file as a fleet": (["fleet", "configs/router.yaml"], "name it in a fleet's file as router: configs/"),
    "a profile as a trace": (
        ["simulate", "--trace", "configs/cpu-tiny.yaml"],
        "this is a profile of an engine, not a trace",
    ),
    "a class without a rank": (["serve", "m", "--slo-config", "RANKLESS"], "classes.vip.rank: is missing; needed: "),
    "an experiment in capitals": (
        ["simulate", "--experiment", "Azure-conv"],
        "unknown experiment 'Azure-conv'; did you mean 'azure-conv'? `sloserve workloads --experiments` lists all",
    ),
    "a choice in capitals": (
        ["serve", "m", "--log-format", "JSON"],
        "'JSON' is not one of 'text', 'json'; see sloserve serve --help",
    ),
    "nothing to simulate": (
        ["simulate"],
        "give one of --workload NAME (sloserve workloads lists them) and --trace FILE",
    ),
    "no such workload": (["simulate", "--workload", "no"], "unknown workload 'no'; known: sharegpt-poisson, "),
    "no server to load": (["bench"], "Missing option '--url'; see sloserve bench --help"),
    "an edge without an engine host": (["edge"], "Missing option '--upstream'; see sloserve edge --help"),
    "a certificate without a key": (
        [*EDGE, "--ssl-certfile", "x.pem"],
        "--ssl-certfile and --ssl-keyfile belong together; give both or none",
    ),
    "fleet run without a file": (["fleet", "run"], "see sloserve fleet run --help"),
    "no such built-in model": (
        ["serve", "builtin:tinny"],
        "there is no such built-in model; the only one is builtin:tiny",
    ),
    "a target as a flag": (
        ["serve", "m", "--slo-ttft-ms", "500"],
        "a class has its targets in --slo-config FILE, as classes.NAME.ttft_ms",
    ),
    "an unknown flag of ours": (["serve", "m", "--slo-x"], "no such flag: --slo-x; see sloserve serve --help"),
    "settings that are not JSON": (
        ["serve", "m", "--additional-config", '{"sloserve": {"policy": "edf"'],
        "is not JSON (Expecting ',' delimiter",
    ),
    "a setting mistyped for vLLM": (
        ["serve", "m", "--additional-config", '{"sloserve": {"polcy": "edf"}}'],
        "sloserve.polcy: is unknown; known here: policy, ",
    ),
    "vLLM's own order": (["serve", "m", "--scheduling-policy", "priority"], "use --policy priority"),
    "a policy of chunks without them": (
        ["serve", "m", "--policy", "sarathi", "--no-enable-chunked-prefill"],
        "remove --no-enable-chunked-prefill or choose another policy",
    ),
    "another scheduler": (["profile", "m", "--scheduler-cls", "x.Y"], "sloserve serve sets the scheduler"),
    "swapping in a pipeline": (
        ["serve", "m", "--swap-space-gib", "0.1", "-pp", "2"],
        "leave out --pipeline-parallel-size 2 or --swap-space-gib",
    ),
    "HTTP/3 without a certificate": (
        ["serve", "m", "--http3"],
        "--http3 needs a certificate: --ssl-certfile and --ssl-keyfile, or --http3-self-signed",
    ),
    "a workload's file of SLOs": (
        ["serve", "m", "--slo", "configs/slo-10s.yaml"],
        "a server's settings are in --slo-config FILE, and --slo FILE is of simulate, bench and advise",
    ),
    "a setting as a flag": (
        ["serve", "m", "--record-folder", "/tmp/x"],
        "no such flag: --record-folder; it is a setting: write record_folder into --slo-config FILE",
    ),
    "half of a profile's name": (
        ["simulate", "--workload", "sharegpt-poisson", "--rps", "9", "--profile", "b200-llama3"],
        "did you mean one of b200-llama3-70b-fp8, b200-llama3-8b?",
    ),
    "a port without an address": (["status", "--port", "8000"], "the address is one flag: --url http://HOST:PORT"),
    "a command's help": (["help", "serve"], "no such command: help; use sloserve COMMAND --help"),
    "no admin key": (
        ["top"],
        "SLOSERVE_ADMIN_KEY is not set; it must be the admin key that the server was started with",
    ),
}

WITHOUT = {
    "simulate without scipy": (
        "scipy",
        ["simulate", "--workload", "chat-batch-mix", "--engine", "model"],
        "sim",
    ),
    "a fleet without uvicorn": ("uvicorn", ["fleet", FLEET, "--state", "STATE"], "fleet"),
    "an edge without aioquic": ("aioquic", EDGE, "http3"),
}
"""The module that is not installed, the command, and the extra that has it."""

ALL = {name: ("", *row) for name, row in WRONG.items()} | {
    name: (lacks, command, f"needs {lacks}, which is not installed: pip install -e '.[{extra}]', in ")
    for name, (lacks, command, extra) in WITHOUT.items()
}


AFRESH = frozenset(
    {"no model", "a profile without a model", "no server to load", "nothing to check", "a command mistyped", *WITHOUT}
)
"""Commands of a process of their own, at least one of each kind; ``make whole`` runs all so."""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    with forked_commands(tmp_path_factory.mktemp("forked")) as commands:
        yield commands


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ALL)
def test_a_wrong_command_is_one_line_and_soon(mistake: str, tmp_path: Path, forked: ForkedCommands) -> None:
    lacks, words, message = ALL[mistake]
    bad = tmp_path / "bad.yaml"
    bad.write_text("polcy: edf\n")
    rankless = tmp_path / "rankless.yaml"
    rankless.write_text("classes: {vip: {ttft_ms: 100}}\n")
    environment = {name: value for name, value in os.environ.items() if name != "SLOSERVE_ADMIN_KEY"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        stands_for = {"TAKEN": str(taken.getsockname()[1]), "STATE": str(tmp_path), "BAD": str(bad)}
        stands_for["RANKLESS"] = str(rankless)
        arguments = [stands_for.get(word, word) for word in words]
        if WHOLE or mistake in AFRESH:
            ended = run_afresh(arguments, environment, list(filter(None, [lacks])))
        else:
            ended = forked.run(arguments, environment)
    print(f"{mistake}\t{ended.cpu_s:.1f}\t{ended.stderr.strip()}")
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("sloserve: ") and ended.stderr.count("\n") == 1 and message in ended.stderr
    assert ended.cpu_s < CPU_S, f"{mistake} took {ended.cpu_s:.1f} CPU s"
