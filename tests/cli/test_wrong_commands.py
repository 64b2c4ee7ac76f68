"""What an operator gets for a wrong command: one line that names the remedy, before anything large is loaded."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

CPU_S = 5.0
"""Most CPU seconds that an answer may take. It takes 0.5 to 1.0; loading vLLM alone takes 8."""

FLEET = "configs/fleet-tiny.yaml"
EDGE = ("edge", "--upstream", "https://127.0.0.1:1")

WRONG = {
    "no model": (["serve"], "no model given; for example: sloserve serve builtin:tiny"),
    "no such folder": (["serve", "/no/such"], "model /no/such: there is no such folder or file; give one, or"),
    "a flag of vLLM mistyped": (["serve", "m", "--max-model-lne", "9"], "did you mean --max-model-len?"),
    "a flag of ours mistyped": (["serve", "m", "--polcy", "edf"], "no such flag: --polcy; did you mean --policy?"),
    "a port taken": (["serve", "m", "--port", "TAKEN"], "Address already in use; choose another with --port or"),
    "a port that is none": (["serve", "m", "--port", "x"], "argument --port: invalid int value: 'x'"),
    "no such policy": (["serve", "m", "--policy", "edff"], "unknown policy 'edff'; installed: "),
    "no such option": (["serve", "m", "--policy", "edf:sped=1"], "policy 'edf' has no option 'sped'"),
    "nothing to check": (["check-config"], "nothing to check; name a FILE, a --preset, or flags of serve"),
    "flags without a file": (["check-config", "--max-waiting", "5"], "add --admission cap"),
    "no file of a fleet": (["fleet", "no.yaml"], "no.yaml: cannot be read: No such file or directory"),
    "a fleet's port": (["fleet", FLEET, "--state", "STATE", "--port", "99999"], "gateway: cannot listen on 127.0.0.1"),
    "an edge's port taken": ([*EDGE, "--port", "TAKEN"], "cannot listen on 127.0.0.1 port"),
    "an edge's certificate": ([*EDGE, "--ssl-certfile", "no", "--ssl-keyfile", "no"], "no PEM certificate and key"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_command_is_one_line_and_soon(mistake: str, tmp_path: Path) -> None:
    arguments, message = WRONG[mistake]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        stands_for = {"TAKEN": str(taken.getsockname()[1]), "STATE": str(tmp_path)}
        command = [sys.executable, "-m", "sloserve.cli", *(stands_for.get(word, word) for word in arguments)]
        before = os.times()
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    took_s = os.times().children_user + os.times().children_system - before.children_user - before.children_system
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("sloserve: ") and ended.stderr.count("\n") == 1 and message in ended.stderr
    assert took_s < CPU_S, f"{mistake} took {took_s:.1f} CPU s"
