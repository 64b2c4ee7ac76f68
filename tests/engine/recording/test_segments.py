"""Segments of a recording: bounded, private, and readable up to where they are torn or damaged."""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.engine.recording import segments
from sloserve.engine.recording.events import (
    FORMAT,
    HASH_BYTES,
    Event,
    FirstToken,
    Lost,
    PolicyCalled,
    RequestEnded,
    RowsSeen,
    SegmentHead,
    Stepped,
    weight,
)
from sloserve.engine.recording.folder import trim
from sloserve.engine.recording.reading import read_recording, recordings
from sloserve.engine.recording.recorder import MOST_FRAME_EVENTS, Recorder
from sloserve.engine.recording.salt import MOST_STRETCHES, Salt
from sloserve.engine.recording.segments import MAGIC, PARTS, SUFFIX, SegmentWriter, frame_of, read_segment

HEAD = SegmentHead(FORMAT, 1.0, {"kv_blocks": 9}, {}, "edf", None, 64, [])


def events(first: int, count: int = 3) -> list[Event]:
    return [FirstToken(number, number / 7) for number in range(first, first + count)]


def written(folder: Path, frames: list[list[Event]], most_bytes: int = 1 << 20) -> list[Path]:
    writer = SegmentWriter(folder, "one", most_bytes)
    for frame in frames:
        writer.write(frame, lambda: HEAD)
    writer.close()
    return sorted(folder.glob(f"*{SUFFIX}"))


def test_a_segment_is_read_as_it_was_written_and_by_its_user_alone(tmp_path: Path) -> None:
    frames: list[list[Event]] = [
        events(1),
        [Stepped(1.0, 2.0, *range(10))],
        [RequestEnded(1, 2.5, True, 4, 0, b"\x00\xff")],
    ]
    (path,) = written(tmp_path / "new", frames)
    assert list(read_segment(path)) == [HEAD, *(event for frame in frames for event in frame)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_all_segments_together_stay_within_their_bound_and_the_latest_are_kept(tmp_path: Path) -> None:
    bound = 8 * 1024
    paths = written(tmp_path, [events(number, 20) for number in range(0, 4000, 20)], bound)
    sizes = [path.stat().st_size for path in paths]
    assert len(paths) == PARTS and sum(sizes) <= bound * 1.1 and max(sizes) <= bound / PARTS * 1.3
    recording = read_recording(paths)
    assert max(recording.first_token_s) == 3999 and min(recording.first_token_s) > 0
    assert all(next(iter(read_segment(path))) == HEAD for path in paths)


def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [events(1), events(4)])
    whole = path.read_bytes()
    last = len(frame_of(events(4)))
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        assert list(read_segment(path)) == [HEAD, *events(1)]


@given(st.data())
def test_a_damaged_segment_gives_whole_frames_or_an_error_that_names_it(data: st.DataObject) -> None:
    whole = MAGIC + frame_of([HEAD]) + frame_of(events(1)) + frame_of(events(4))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = Path("/dev/shm") / f"sloserve-test-damaged{SUFFIX}"
    path.write_bytes(bytes(damaged) + data.draw(st.binary(max_size=40)))
    try:
        found = list(read_segment(path))
        assert found in ([], [HEAD], [HEAD, *events(1)], [HEAD, *events(1), *events(4)])
    except ConfigError as error:
        assert str(path) in str(error)
    finally:
        path.unlink()


def test_a_frame_that_inflates_beyond_its_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = written(tmp_path, [events(1), events(5, 4000)])
    monkeypatch.setattr(segments, "MOST_FRAME_BYTES", 16000)
    assert list(read_segment(path)) == [HEAD, *events(1)]


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    path.write_bytes(b"policy: edf\n")
    with pytest.raises(ConfigError, match="is not a segment of a recording"):
        list(read_segment(path))
    path.write_bytes(MAGIC + frame_of([SegmentHead(FORMAT + 1, 1.0, {}, {}, "edf", None, 64, [])]))
    with pytest.raises(ConfigError, match=f"does not begin with facts of format {FORMAT}"):
        list(read_segment(path))
    with pytest.raises(ConfigError, match="there is no recording; sloserve serve --record-mib 64 makes one"):
        recordings(tmp_path / "empty")


def test_a_recorder_writes_from_its_thread_and_ends_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "a", 1 << 20, lambda: HEAD)
    for step in range(40):
        recorder.add(FirstToken(step, float(step)))
    recorder.close()
    recorder.close()
    ((_, paths),) = recordings(tmp_path).items()
    assert list(read_recording(paths).first_token_s) == list(range(40)) and not recorder.failed


def test_a_full_disk_ends_the_recording_and_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    reported: list[tuple[int, bool]] = []
    recorder = Recorder(tmp_path, "a", 1 << 20, lambda: HEAD, report=lambda *new: reported.append(new))
    monkeypatch.setattr(segments, "_write_all", full)
    recorder.add(FirstToken(1, 1.0))
    recorder.close()
    recorder.add(FirstToken(2, 1.0))
    assert recorder.failed and reported == [(0, True)]


def test_events_that_a_slow_disk_leaves_waiting_are_bounded_and_their_loss_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sloserve.engine.recording.recorder.MOST_EVENTS", 5)
    monkeypatch.setattr("sloserve.engine.recording.recorder.EVERY_S", 100.0)
    reported: list[tuple[int, bool]] = []
    recorder = Recorder(tmp_path, "a", 1 << 20, lambda: HEAD, ManualClock(7.0), lambda *new: reported.append(new))
    for step in range(9):
        recorder.add(FirstToken(step, 1.0))
    recorder.close()
    ((_, paths),) = recordings(tmp_path).items()
    assert list(read_segment(paths[0]))[-1] == Lost(7.0, 4)
    found = read_recording(paths)
    assert recorder.lost == found.lost == 4 and list(found.first_token_s) == [0, 1, 2, 3, 4]
    assert reported == [(4, False)]


def test_a_loss_is_known_once_the_segment_that_noted_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sloserve.engine.recording.recorder.EVERY_S", 100.0)
    recorder = Recorder(tmp_path, "a", PARTS * 300, lambda: HEAD)
    recorder.add(RequestEnded(1, 1.0, True, 1, 0, os.urandom(400)))  # no segment has room
    recorder._write()
    for step in range(400):
        recorder.add(FirstToken(step, 1.0 / (step + 1)))
        recorder._write()
    recorder.close()
    ((_, paths),) = recordings(tmp_path).items()
    assert paths[0].name != f"a-000000{SUFFIX}" and read_recording(paths).lost == 1


def test_names_and_contents_mean_nothing_outside_the_recording() -> None:
    one, other = Salt(), Salt()
    assert one.name("acme") == one.name("acme") != one.name("beta") and one.name("acme") != other.name("acme")
    assert one.name(None) == one.name("") == 0
    assert one.contents([b"a", b"b"])[:8] == one.contents([b"a"]) != other.contents([b"a"])


def test_ended_recordings_keep_to_a_bound(tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    paths = [tmp_path / f"{i}{SUFFIX}" for i in range(4)]
    for path in paths:
        path.write_bytes(bytes(100))
    now_s = paths[0].stat().st_mtime
    trim(tmp_path, 250, now_s)
    assert all(path.exists() for path in paths), "they may be of servers that run"
    trim(tmp_path, 250, now_s + 7200.0)
    assert sum(path.exists() for path in paths) == 2
    trim(tmp_path / "nowhere", 250, clock.now_s())


def test_a_server_that_was_killed_before_the_first_frame_leaves_nothing_to_read(tmp_path: Path) -> None:
    (whole,) = written(tmp_path, [events(1)])
    torn = tmp_path / f"one-000001{SUFFIX}"
    for size in (0, 5, len(MAGIC)):
        torn.write_bytes(MAGIC[:size])
        assert list(read_segment(torn)) == []
        assert list(read_recording([whole, torn]).first_token_s) == [1, 2, 3]
    with pytest.raises(ConfigError, match="the recording holds nothing yet"):
        read_recording([torn])


@pytest.mark.slow
def test_prompts_of_any_length_fit_a_frame_that_is_read(tmp_path: Path) -> None:
    prompt = Salt().contents(range(10 * MOST_STRETCHES))
    assert len(prompt) == MOST_STRETCHES * HASH_BYTES
    recorder = Recorder(tmp_path, "a", 1 << 28, lambda: HEAD)
    for number in range(2 * MOST_FRAME_EVENTS):
        recorder.add(RequestEnded(number, 1.0, True, 1, 0, prompt))
    recorder.close()
    ((_, paths),) = recordings(tmp_path).items()
    assert len(read_recording(paths).ended) == 2 * MOST_FRAME_EVENTS and not recorder.lost
    small = Recorder(tmp_path / "small", "a", 1 << 16, lambda: HEAD)
    small.add(RequestEnded(1, 1.0, True, 1, 0, prompt))
    small.close()
    assert small.lost == 1 and not small.failed


def test_columns_that_wait_are_bounded_and_make_short_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.engine.recording.recorder.EVERY_S", 100.0)
    monkeypatch.setattr("sloserve.engine.recording.recorder.MOST_WAITING_BYTES", 1_000_000)
    monkeypatch.setattr("sloserve.engine.recording.recorder.MOST_FRAME_WEIGHT", 250_000)
    recorder = Recorder(tmp_path, "a", 1 << 26, lambda: HEAD)
    sizes: list[int] = []
    write = recorder._writer.write

    def noted(events: Sequence[Event], head: Callable[[], SegmentHead]) -> bool:
        sizes.append(len(events))
        return write(events, head)

    monkeypatch.setattr(recorder._writer, "write", noted)
    for number in range(12):
        rows = RowsSeen(64, number, True, [(0, ["seq"], b"", bytes(100_000))])
        recorder.add(event := PolicyCalled(1.0, "arrived", b"", b"", rows, []), weight(event))
    recorder.close()
    assert recorder.lost == 2 and sizes == [3, 3, 3, 1, 1]
