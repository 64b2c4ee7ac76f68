"""A gateway whose disk of files is full: a real process, whose folder is a small file system of its own."""

import json
import signal
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import pytest

from sloserve.fleet.store.records import Claim, RequestState, Result
from sloserve.fleet.store.store import Store, open_store
from tests.bounded import within
from tests.fleet.live_faults.processes import LiveFleet

DISK_KIB: Final = 128
_MOUNTED: Final = f'mount -t tmpfs -o size={DISK_KIB}k none "$0"'
_WAYS: Final = (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"])
"""Commands that give a process mounts of its own; the second one does so for any user where the kernel allows that."""
_ROUTE: Final = "/v1/completions"


@cache
def _way() -> list[str] | None:
    """Return the command with which a process can mount a file system that nothing else sees."""
    for way in _WAYS:
        try:
            tried = subprocess.run([*way, "sh", "-c", _MOUNTED, "/mnt"], capture_output=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if not tried.returncode:
            return way
    return None


def _upload(client: openai.OpenAI, content: bytes) -> str:
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def _claimed(store: Store) -> Claim:
    """Claim the one line that waits, as an agent does."""
    with within("the line of the batch"):
        while not (sums := store.requests.sums()):
            time.sleep(0.05)
    claim = store.requests.claim("left:test", sums[0].group, 1, 60.0)
    assert claim is not None
    return claim


def _state(client: openai.OpenAI, batch: str, *wanted: str) -> Any:
    with within(f"a batch that is {wanted}"):
        while (found := client.batches.retrieve(batch)).status not in wanted:
            time.sleep(0.1)
    return found


@pytest.mark.slow
def test_results_wait_for_room_on_the_disk_of_files(tmp_path: Path) -> None:
    if (way := _way()) is None:
        pytest.skip("nothing can be mounted here")
    fleet = LiveFleet(tmp_path, 1, None)
    part, folder = fleet.parts["gateway-0"], tmp_path / "fleet.state" / "files"
    folder.mkdir(parents=True, mode=0o700)
    part.command = [*way, "sh", "-c", f'{_MOUNTED} && exec "$@"', str(folder), *part.command]
    (tmp_path / "run").mkdir(mode=0o700)
    part.start()
    store: Store | None = None
    try:
        with within("the gateway", 60.0):
            while not _responds(fleet):
                assert not part.has_ended(), part.log.read_text()
                time.sleep(0.05)
        client, store = openai.OpenAI(base_url=fleet.url, api_key=fleet.keys[0], max_retries=0), open_store(fleet.store)
        body = {"model": "chat", "prompt": "a", "max_tokens": 1}
        line = json.dumps({"custom_id": "a", "method": "POST", "url": _ROUTE, "body": body}).encode() + b"\n"
        batch = client.batches.create(input_file_id=_upload(client, line), endpoint=_ROUTE, completion_window="24h")
        claim = _claimed(store)
        filler = _upload(client, b"x" * (DISK_KIB - 48) * 1024)
        with pytest.raises(openai.APIStatusError, match="is full") as refused:
            _upload(client, b"x" * 64 * 1024)
        assert refused.value.status_code == 507
        # The result has no room either: its batch waits, and the gateway goes on.
        text = "y" * 60_000
        result = json.dumps({"choices": [{"text": text}]}).encode()
        assert store.requests.finish([Result(claim.requests[0].id, 1, RequestState.DONE, 200, result)]) == [True]
        _state(client, batch.id, "finalizing")
        with within("a batch that waits for room"):
            while "waits for room" not in part.log.read_text():
                time.sleep(0.05)
        assert client.batches.retrieve(batch.id).status == "finalizing"
        client.files.delete(filler)
        done = _state(client, batch.id, "completed")
        row = json.loads(client.files.content(done.output_file_id).text)
        assert row["response"]["body"]["choices"][0]["text"] == text
        assert "Traceback" not in part.log.read_text()
    finally:
        if store is not None:
            store.close()
        if not part.has_ended():
            part.send(signal.SIGTERM)
        assert part.process is not None
        part.process.wait(30)
        fleet.left()


def _responds(fleet: LiveFleet) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{fleet.port}/health", timeout=2.0).status_code < 600
    except httpx.TransportError:
        return False
