"""A real server that is told to stop under load, by the benchmark that also measures vLLM alone."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.whole]

TIMEOUT_S = 4


def test_every_stream_ends_in_time_new_work_is_refused_and_the_process_ends() -> None:
    command = [sys.executable, "-m", "benchmarks.serving.shutdown_under_load", "--servers", "sloserve"]
    command += ["--timeouts", str(TIMEOUT_S), "--no-file"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    found = json.loads(done.stdout)
    assert found["streams"] == {"completed": 4, "error event": 4}
    assert found["last_stream_s"] < TIMEOUT_S
    assert found["exit_s"] < TIMEOUT_S + 10
    assert found["new_requests"].pop("503 OpenAI error, with Retry-After") >= 5
    assert set(found["new_requests"]) <= {"refused", "no answer"}  # once it no longer listens
    assert (found["ready_before"], found["ready_meanwhile"]) == (200, [503])
