"""A server that records: two API processes and an engine make one recording, in which nothing of a client stands."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from sloserve.engine.recording.events import (
    ABORTED,
    BODY_TOO_LARGE,
    INVALID,
    LENGTH,
    STOP_STRING,
    TENANT_LIMIT,
    UNATTAINABLE,
)
from sloserve.engine.recording.reading import Recording, read_recording, recordings
from sloserve.engine.recording.segments import MAGIC
from sloserve.sim.recorded_plans import check_plans
from sloserve.wire.keys import hash_of
from tests import bounded
from tests.vllm.server import ADMIN_KEY, MODEL, Server

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

MARKER = "zanzibar"
TOKENS = [113, 107, 101, 97, 89, 83, 79, 73]
KEYS = f"""
tenants:
  {MARKER}-tenant: {{keys: ['{hash_of(f"{MARKER}-key")}']}}
  {MARKER}-limited: {{keys: ['{hash_of(f"{MARKER}-limited-key")}'], quota: {{requests_per_minute: 1}}}}
"""
IGNORING = {"ignore_eos": True}
PROMPT = f"my name is {MARKER}, " * 8


def ask(url: str, name: str, key: str = "key", headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """Send a request that has the marker wherever a client states something; each has a connection of its own."""
    stated = {
        "authorization": f"Bearer {MARKER}-{key}",
        "x-request-id": f"{MARKER}-{name}",
        "x-slo-task-id": f"{MARKER}-task",
        "x-session-id": f"{MARKER}-session",
    }
    body = {"model": f"{MARKER}-alias", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    body |= {"user": f"{MARKER}-user", "return_token_ids": True, **more}
    return httpx.post(f"{url}/v1/completions", json=body, headers=stated | (headers or {}), timeout=120)


@dataclass(frozen=True)
class Made:
    """What a server has recorded.

    Args:
        folder: Folder of the recordings.
        sequences: Tokens of two outputs and of a prompt.
        late: Late requests that the running server listed.
        explained: What it said of the first of them.
    """

    folder: Path
    sequences: list[list[int]]
    late: list[Any]
    explained: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Serve a few requests of each kind, have a late one explained, and stop the server."""
    base = tmp_path_factory.mktemp("recorded")
    (base / "keys.yaml").write_text(KEYS)
    (base / "serve.yaml").write_text(f"record_folder: {base / 'recordings'}\nmax_body_bytes: 5000\n")
    flags = [
        "--record-mib",
        "8",
        "--record",
        "plans",
        "--policy",
        "auto",
        "--admission",
        "predict",
        "--keys",
        str(base / "keys.yaml"),
    ]
    flags += ["--slo-config", str(base / "serve.yaml"), "--served-model-name", MODEL, f"{MARKER}-alias"]
    server = Server(*flags, api_servers=2, env={"SLOSERVE_ADMIN_KEY": ADMIN_KEY})
    try:
        server.wait_ready()
        url = server.url
        # Nothing has been predicted yet, so that the first request is admitted; it will be late.
        stated = {"slo": {"class": "batch", "e2e_ms": 1}, "headers": {"x-slo-held-ms": "5000;e2e-ms=9000"}}
        whole = ask(url, "whole", **stated).raise_for_status().json()["choices"][0]
        assert ask(url, "stopped", stop=[whole["text"][5:9]]).json()["choices"][0]["finish_reason"] == "stop"
        by_tokens = ask(url, "by-tokens", prompt=TOKENS).raise_for_status().json()["choices"][0]
        soon = [ask(url, "too-soon", slo={"ttft_ms": 0.001, "class": "interactive"}).status_code for _ in range(6)]
        for _ in range(6):  # whichever of the two processes it meets
            assert ask(url, "misspelt", slo={"ttft": 1}).status_code == 400
        assert ask(url, "too-large", prompt="x" * 9000).status_code == 413
        limited = [ask(url, "limited", key="limited-key").status_code for _ in range(4)]
        assert limited.count(429) >= 2
        with httpx.stream(
            "POST",
            f"{url}/v1/completions",
            json={
                "model": MODEL,
                "prompt": PROMPT,
                "max_tokens": 3500,
                "ignore_eos": True,
                "stream": True,
                "stop": "¶¶",
            },
            headers={"authorization": f"Bearer {MARKER}-key"},
            timeout=120,
        ) as response:
            next(response.iter_lines())  # and the client leaves
        ask(url, "last").raise_for_status()
        tried, refused = [*soon, *limited], 7 + [*soon, *limited].count(429)
        assert set(tried) <= {200, 429}
        bounded.run(bounded.until(lambda: count(base / "recordings") == (5 + tried.count(200), refused)))
        admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        late = httpx.get(f"{url}/sloserve/explain", headers=admin, timeout=300).raise_for_status().json()["late"]
        query = {"request": f"0-{late[0]['number']}"}
        explained = httpx.get(f"{url}/sloserve/explain", params=query, headers=admin, timeout=300)
        explained.raise_for_status()
    finally:
        assert server.stop() == 0
    sequences = [whole["token_ids"], by_tokens["token_ids"], TOKENS]
    yield Made(base / "recordings", sequences, late, explained.json())


@pytest.fixture(scope="module")
def recording(made: Made) -> Recording:
    ((name, paths),) = recordings(made.folder).items()
    assert name.endswith("-rank0") and {path.name.split("-")[2] for path in paths} == {"rank0", "api0", "api1"}
    return read_recording(paths)


def count(folder: Path) -> tuple[int, int]:
    """Return how many requests have ended, and how many were refused."""
    (paths,) = recordings(folder).values()
    found = read_recording(paths)
    return len(found.ended), len(found.refused)


def test_ends_say_what_the_api_process_knows(recording: Recording) -> None:
    reasons = Counter(one.reason for one in recording.ended.values())
    assert reasons[STOP_STRING] == 1 and reasons[ABORTED] == 1 and reasons[LENGTH] >= 3
    assert set(reasons) == {STOP_STRING, ABORTED, LENGTH} and recording.lost == 0
    (stopped,) = (one for one in recording.ended.values() if one.reason == STOP_STRING)
    assert stopped.completed and 0 < stopped.output_tokens < 24


def test_refusals_of_both_processes_are_there_with_the_tenants_of_the_engine(recording: Recording) -> None:
    reasons = Counter(one.reason for one in recording.refused)
    assert reasons[INVALID] == 6 and reasons[BODY_TOO_LARGE] == 1 and reasons[TENANT_LIMIT] >= 2
    assert set(reasons) <= {INVALID, BODY_TOO_LARGE, TENANT_LIMIT, UNATTAINABLE}
    served, refused = ({one.tenant for one in found} for found in (recording.arrived.values(), recording.refused))
    assert len(served) == 2 and refused <= served and 0 not in refused
    begin_s, end_s = (pick(one.at_s for one in recording.arrived.values()) for pick in (min, max))
    assert all(begin_s - 60.0 < one.at_s < end_s + 60.0 for one in recording.refused)


def test_the_running_server_explains_a_late_request(made: Made) -> None:
    assert made.late[0]["number"] == 1 and made.explained["request"] == "0-1"
    assert made.explained["text"] and MARKER not in str(made.explained)


def test_how_long_a_gateway_held_a_request_is_not_read_from_a_client_with_a_key(recording: Recording) -> None:
    assert {one.held for one in recording.arrived.values()} == {None}


def test_all_plans_repeat(made: Made) -> None:
    ((_, paths),) = recordings(made.folder).items()
    found = check_plans(paths)
    assert found.plans == found.repeated > 0 and found.is_from_beginning and not found.lost


def test_nothing_that_a_client_sent_or_got_stands_in_any_segment(made: Made) -> None:
    found = b"".join(map(plain, made.folder.iterdir()))
    assert len(found) > 1000 and MARKER.encode() not in found
    for sequence in made.sequences:
        for form in written(sequence[:6]):
            assert form not in found
    for key in ("key", "limited-key"):
        assert hash_of(f"{MARKER}-{key}").encode() not in found


def plain(path: Path) -> bytes:
    """Return a segment with its frames decompressed."""
    data, at = path.read_bytes(), len(MAGIC)
    frames = [data[:at]]
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        frames.append(zlib.decompress(data[at + 8 : at + 8 + length]))
        at += 8 + length
    return b"".join(frames)


def written(tokens: Sequence[int]) -> Iterator[bytes]:
    """Yield the forms in which tokens might be written."""
    yield msgspec.msgpack.encode(list(tokens))[1:]
    yield ", ".join(map(str, tokens)).encode()
    yield " ".join(map(str, tokens)).encode()
    for form in "HIQ":
        yield struct.pack(f"<{len(tokens)}{form}", *tokens)
