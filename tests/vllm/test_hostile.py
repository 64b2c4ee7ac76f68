"""What a client may send to do harm, on a real engine: each is answered as it should be, and the server serves on."""

import os
from pathlib import Path

import httpx
import pytest

from tests.vllm.hostile import ADMIN, CASES, FIFO, POLICY, Case
from tests.vllm.server import Server, complete, samples

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def expected(http: httpx.Client) -> str:
    return complete(http, "A good request")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_is_answered_and_a_good_request_after_it(
    server: Server, http: httpx.Client, expected: str, tmp_path: Path, case: Case
) -> None:
    follow(server, case.policy)
    body = case.body
    if isinstance(body, bytes) and FIFO.encode() in body:
        os.mkfifo(tmp_path / "fifo")
        body = body.replace(FIFO.encode(), str(tmp_path / "fifo").encode())
    content = body if isinstance(body, bytes) else iter(body)
    answer = httpx.request(case.method, server.url + case.path, content=content, headers=case.headers, timeout=60)
    assert answer.status_code in case.statuses, answer.text[:500]
    assert case.says in answer.text and "root:" not in answer.text
    if answer.status_code == 200:
        assert not case.applied or answer.json()["slo"]["targets"] == {"e2e_ms": 60_000.0}
    elif "error" in answer.json():  # FastAPI answers in its own format for what it cannot parse
        error = answer.json()["error"]
        assert error["code"] == answer.status_code and len(error["message"]) < 1000 and len(error["param"] or "") < 100
    (status,) = httpx.get(f"{server.url}/sloserve/status", headers=ADMIN, timeout=60).json()
    assert (status["policy"], status["shadow_policy"]) == (case.policy, "sjf")
    assert complete(http, "A good request") == expected


def follow(server: Server, policy: str) -> None:
    wanted = {"policy": policy, "shadow_policy": "sjf"}
    httpx.put(server.url + POLICY, json=wanted, headers=ADMIN, timeout=60).raise_for_status()


def test_afterwards_no_error_of_ours_was_counted(server: Server) -> None:
    follow(server, "edf")  # for the tests that come after these
    assert set(samples(server, "sloserve:internal_errors_total").values()) == {0.0}
