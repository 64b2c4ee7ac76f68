"""What every kind of files must do, on each; S3 over loopback. Google's and Azure's are NOT TESTED."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError, StoreAway
from sloserve.fleet.batch_api.files import Files, check_shared, open_files
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.batch_api.runner import BatchRunner
from sloserve.fleet.store.records import Batch, BatchState, File, RequestState, Result
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store
from tests import bounded
from tests.ports import free_port

ONE, TWO = f"file-{'1' * 32}", f"file-{'2' * 32}"
Opening = Callable[[], Files]

SERVER = """
import sys
from moto.server import main
main(["-H", "127.0.0.1", "-p", sys.argv[1]])
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that speaks S3, with a bucket."""
    # Not imported: with Flask in this process, whose objects raise when looked at, vLLM starts no engine.
    if find_spec("moto") is None:
        pytest.skip("NOT TESTED: moto is not installed")
    port, log = free_port(), tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=out, stderr=out)
    try:
        for _ in range(600):
            try:
                asked = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
                urllib.request.urlopen(asked, timeout=60).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(60)


def in_s3(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    values = {"ENDPOINT_URL": endpoint, "ALLOW_HTTP": "true", "REGION": "us-east-1", "ACCESS_KEY_ID": "a"}
    for name, value in {**values, "SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture(params=["folder", "local", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def opening(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opening:
    """Opens the same files as often as it is called."""
    if request.param == "folder":
        return lambda: open_files(tmp_path / "files")
    pytest.importorskip("obstore", reason="NOT TESTED: obstore is not installed")
    from obstore.store import LocalStore, MemoryStore

    from sloserve.fleet.batch_api.objects import ObjectFiles

    if request.param == "s3":
        in_s3(monkeypatch, request.getfixturevalue("s3"))
        return lambda: open_files(f"s3://bucket/{tmp_path.name}/files")
    store = MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "files", mkdir=True)
    return lambda: ObjectFiles(store)


def write(files: Files, id: str, *parts: bytes) -> None:
    with files.writing(id) as file:
        for part in parts:
            file.write(part)


def read(files: Files, id: str) -> bytes:
    found = files.open(id)
    assert found is not None
    with found:
        return found.read()


def test_what_was_written_is_read_by_parts_and_by_lines(opening: Opening) -> None:
    files, lines = opening(), [b"a\n", b"\n", b"b" * 70_000 + b"\n", b"c"]
    write(files, ONE, *lines)
    write(files, TWO)
    found = opening().open(ONE)
    assert found is not None
    with found:
        assert [found.readline(100_000), found.tell()] == [b"a\n", 2]
        assert [found.readline(100_000), found.readline(10), found.tell()] == [b"\n", b"b" * 10, 13]
        assert found.read(4) == b"b" * 4 and found.read() == b"b" * 69_986 + b"\nc" and found.read(1) == b""
    assert read(files, TWO) == b""
    write(files, ONE, b"anew")
    assert read(opening(), ONE) == b"anew"


def test_a_file_is_there_whole_or_not_at_all(opening: Opening) -> None:
    files = opening()
    write(files, TWO, b"before")
    for id in (ONE, TWO):
        with pytest.raises(RuntimeError), files.writing(id) as file:
            file.write(b"x" * 100)
            assert id == TWO or opening().open(id) is None
            raise RuntimeError
    assert files.open(ONE) is None and read(files, TWO) == b"before"
    files.delete(TWO)
    files.delete(TWO)
    assert files.open(TWO) is None
    for call in (files.open, files.delete, lambda id: write(files, id)):
        with pytest.raises(ValueError, match="is not the id of a file"):
            call("../x")


def test_files_without_a_row_go_once_they_are_old(opening: Opening) -> None:
    files = opening()
    write(files, ONE, b"1")
    write(files, TWO, b"2")
    files.mark("a" * 32)
    files.keep_only(lambda id: id == ONE, before_s=0.0)
    assert read(files, TWO) == b"2"
    files.keep_only(lambda id: id == ONE, before_s=2**33)
    assert read(files, ONE) == b"1" and files.open(TWO) is None and files.mark(None) == "a" * 32


def killed(folder: Path, member: str) -> Path:
    """A half file of this member, which was killed while it wrote."""
    half = folder / f"{ONE}.{Folder(folder, member)._holder}.{'0' * 8}.part"
    half.write_bytes(b"x")
    return half


def test_half_files_stay_as_long_as_their_writer_is_alive(tmp_path: Path) -> None:
    """20 gateways that were killed while they wrote results left 20 half files for a day."""
    alive, _, _ = (killed(tmp_path, name) for name in ("alive", "dead", ""))
    mine = Folder(tmp_path, "mine")
    before = killed(tmp_path, "mine")
    with mine.writing(TWO) as file:
        mine.keep_only(lambda id: False, before_s=0.0, alive=["alive", "mine"])
        assert alive.exists() and not before.exists() and len(list(tmp_path.iterdir())) == 2
        file.write(b"whole")
    assert read(mine, TWO) == b"whole"


def test_a_writer_that_was_taken_for_gone_has_written_nothing(tmp_path: Path) -> None:
    writer, other = Folder(tmp_path, "writer"), Folder(tmp_path, "other")
    write(writer, ONE, b"before")
    with pytest.raises(StoreAway, match="no sign of life"), writer.writing(ONE) as file:
        file.write(b"after")
        other.keep_only(lambda id: True, before_s=0.0, alive=["other"])
    assert read(other, ONE) == b"before" and len(list(tmp_path.iterdir())) == 1


def test_the_first_mark_stays(opening: Opening) -> None:
    assert opening().mark(None) is None
    assert opening().mark("a" * 32) == opening().mark("b" * 32) == opening().mark(None) == "a" * 32


def test_gateways_on_unshared_files_are_refused(opening: Opening, tmp_path: Path) -> None:
    store = Store(SqliteDatabase(tmp_path / "store.sqlite"))
    check_shared(opening(), store, "first")
    check_shared(opening(), store, "again")
    other = Folder(tmp_path / "other")
    with pytest.raises(ConfigError, match="other: these are not the files .* no mark.*files in the fleet's file"):
        check_shared(other, store, "other")
    other.mark("b" * 32)
    with pytest.raises(ConfigError, match="their mark is b+, and the store's is"):
        check_shared(other, store, "other")
    mark = store.files_mark(None)
    (tmp_path / "other" / Folder.MARK).write_text(f"{mark}\n")
    check_shared(other, store, "as the message says")
    store.close()


def test_a_start_that_was_broken_off_between_the_marks_goes_on(opening: Opening, tmp_path: Path) -> None:
    store = Store(SqliteDatabase(tmp_path / "store.sqlite"))
    opening().mark("a" * 32)
    check_shared(opening(), store, "files")
    assert store.files_mark(None) == "a" * 32
    store.close()


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="unsupported scheme 'ftp'; give the path of a folder, or s3://"):
        open_files("ftp://host/x")
    monkeypatch.setitem(sys.modules, "sloserve.fleet.batch_api.objects", None)
    with pytest.raises(ConfigError, match=r"files: s3:// needs obstore, .*: pip install -e '\.\[s3\]', in "):
        open_files("s3://bucket/x")


@pytest.mark.slow
def test_a_bucket_that_cannot_be_used(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Store(SqliteDatabase(tmp_path / "store.sqlite"))
    in_s3(monkeypatch, s3)
    files = open_files("s3://missing/x")
    with pytest.raises(ConfigError, match="s3://missing/x: files cannot be used"):
        check_shared(files, store, "s3://missing/x")
    with pytest.raises(StoreAway):
        write(files, ONE, b"x")
    in_s3(monkeypatch, f"http://127.0.0.1:{free_port()}")
    files = open_files("s3://bucket/x")
    for call in (files.open, files.delete, lambda id: write(files, id, b"x")):
        with pytest.raises(StoreAway, match="the object storage of files"):
            call(ONE)
    with pytest.raises(ConfigError, match="files: s3:// cannot be opened"):
        open_files("s3://")
    store.close()


@pytest.mark.slow
def test_a_gateway_ends_what_another_began_in_a_bucket(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_s3(monkeypatch, s3)
    store = Store(SqliteDatabase(tmp_path / "store.sqlite"))
    first, second = (
        BatchRunner(store, open_files(f"s3://bucket/{tmp_path.name}"), lambda tenant: {"m"}, lambda b, line: 0)
        for _ in range(2)
    )
    body, url = {"model": "m", "messages": []}, "/v1/chat/completions"
    lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i in range(1_500)]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    write(first.folder, ONE, data)
    store.batches.add_file(File(ONE, "t", "in", "batch", len(data), 0.0))
    store.batches.add(Batch("batch_1", "t", url, "24h", ONE, BatchState.VALIDATING, {}, 0.0), 86_400.0)
    first.step()  # a slice of its lines is checked, then this gateway is killed
    with bounded.within("the end of the batch"):
        while second.step():
            pass
    claim = store.requests.claim("agent", 0, 2_000, 60.0)
    assert claim is not None and len(claim.requests) == 1_500
    store.requests.finish([Result(r.id, r.attempt, RequestState.DONE, 200, b"{}") for r in claim.requests])
    with bounded.within("the end of the batch"):
        while second.step():
            pass
    batch = store.batches.get("t", "batch_1")
    assert batch is not None and batch.state == BatchState.COMPLETED and batch.output_file is not None
    results = [json.loads(line) for line in read(first.folder, batch.output_file).splitlines()]
    assert sorted(int(row["custom_id"]) for row in results) == list(range(1_500))
    store.close()
