"""What a client may send to do harm, on a real engine: each is answered as it should be, and the server serves on."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.vllm.hostile import ADMIN, CASES, FIFO, POLICY, Case
from tests.vllm.server import Server, complete, samples

pytestmark = pytest.mark.vllm


MAX_TOKENS = 6


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    """Without a key."""
    with httpx.Client(base_url=server.url, timeout=60) as anonymous:
        yield anonymous


@pytest.fixture(scope="module")
def expected(http: httpx.Client) -> str:
    return complete(http, "A good request", max_tokens=MAX_TOKENS)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_is_answered_and_a_good_request_after_it(
    client: httpx.Client, http: httpx.Client, expected: str, tmp_path: Path, case: Case
) -> None:
    follow(client, case.policy)
    body = case.body
    if isinstance(body, bytes) and FIFO.encode() in body:
        os.mkfifo(tmp_path / "fifo")
        body = body.replace(FIFO.encode(), str(tmp_path / "fifo").encode())
    content = body if isinstance(body, bytes) else iter(body)
    answer = client.request(case.method, case.path, content=content, headers=case.headers)
    assert answer.status_code in case.statuses, answer.text[:500]
    assert case.says in answer.text and "root:" not in answer.text
    if answer.status_code == 200:
        assert not case.applied or answer.json()["slo"]["targets"] == {"e2e_ms": 60_000.0}
    elif "error" in answer.json():  # FastAPI answers in its own format for what it cannot parse
        error = answer.json()["error"]
        assert error["code"] == answer.status_code and len(error["message"]) < 1000 and len(error["param"] or "") < 100
    (status,) = client.get("/sloserve/status", headers=ADMIN).json()
    assert (status["policy"], status["shadow_policy"]) == (case.policy, "sjf")
    assert complete(http, "A good request", max_tokens=MAX_TOKENS) == expected


def follow(client: httpx.Client, policy: str) -> None:
    client.put(POLICY, json={"policy": policy, "shadow_policy": "sjf"}, headers=ADMIN).raise_for_status()


def test_afterwards_no_error_of_ours_was_counted(server: Server, client: httpx.Client) -> None:
    follow(client, "edf")  # for the tests that come after these
    assert set(samples(server, "sloserve:internal_errors_total").values()) == {0.0}
