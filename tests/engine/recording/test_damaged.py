"""Whatever becomes of the bytes of a recording, reading gives a prefix of each segment's events or a ConfigError."""

import struct
import zlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import (
    BY_VLLM,
    FORMAT,
    STOP,
    Arrived,
    Event,
    FirstToken,
    Lost,
    Paused,
    PlanMade,
    PoliciesChanged,
    PolicyBegan,
    PolicyCalled,
    Preempted,
    RefusedRequest,
    RequestAdmitted,
    RequestEnded,
    RowsSeen,
    SegmentHead,
    Stepped,
    StopStringFound,
)
from sloserve.engine.recording.reading import read_recording
from sloserve.engine.recording.segments import MAGIC, SUFFIX, frame_of, read_segment

HEAD = SegmentHead(FORMAT, 1.0, {"kv_blocks": 9, "model": "m"}, {"classes": {}}, "edf", None, 64, [1, 2])
SEEN = RowsSeen(64, 3, False, [(0, ["state"], b"\1\0\0\0", b"\1")])
FRAMES: list[list[Event]] = [
    [HEAD],
    [
        Arrived(1, 1.0, 0, 0.5, None, None, None, 70, 9, None, 0, 3, 0, 5, None, None, True, b"12345678"),
        RequestAdmitted(1, 1.1, 0, False),
        Stepped(1.0, 1.2, 70, 1, 0, 0, 4900, 0, 1, 0, 8, 0),
    ],
    [FirstToken(1, 1.2), Preempted(1, 1.3, True, False), Paused(1, 1.4, True), Lost(1.4, 3)],
    [PoliciesChanged(1.5, "fcfs", None), RequestEnded(1, 2.0, True, 4, 1, b"abcdefgh", STOP)],
    [
        PolicyBegan(1.0, "edf", 3, False, False, [[1, 16, 0, 0, 0, 0, 0, 0, 0]], 0, 4096),
        PolicyCalled(1.5, "arrived", b"\0" * 8, b"", SEEN, []),
        PlanMade(
            1.6, SEEN, {"free_blocks": 9}, None, None, (b"", 1, 0), None, (0, 0.0, 0.0), [0.5, 3], None, None, 1e-4
        ),
    ],
    [RefusedRequest(2.0, BY_VLLM, 0, None, None, 1.0, None, None, None, None, 7), StopStringFound(2.1, 99)],
]
WHOLE = MAGIC + b"".join(map(frame_of, FRAMES))
PREFIXES = list(accumulate(FRAMES, initial=list[Event]()))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("damaged") / f"one-rank0-000000{SUFFIX}"


def read(path: Path, data: bytes) -> list[Event] | None:
    """Return the events of a segment; ``None`` if it is refused by name."""
    path.write_bytes(data)
    try:
        found = list(read_segment(path))
    except ConfigError as error:
        assert str(path) in str(error)
        with pytest.raises(ConfigError):
            read_recording([path])
        return None
    try:
        assert read_recording([path]).head == HEAD
    except ConfigError:
        assert HEAD not in found
    return found


def test_what_is_whole_is_read_whole(path: Path) -> None:
    assert read(path, WHOLE) == PREFIXES[-1]
    kinds = {type(event) for frame in FRAMES for event in frame}
    assert kinds == set(Event.__args__), "a kind of event is damaged in no test"


@pytest.mark.slow
def test_a_cut_anywhere_leaves_the_whole_frames_before_it(path: Path) -> None:
    ends = list(accumulate(map(len, map(frame_of, FRAMES)), initial=len(MAGIC)))
    for cut in range(len(WHOLE)):
        whole = sum(end <= cut for end in ends) - 1
        assert read(path, WHOLE[:cut]) == PREFIXES[max(whole, 0)]


@given(data=st.data())
def test_changed_removed_and_added_bytes_leave_a_prefix(path: Path, data: st.DataObject) -> None:
    damaged = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        match data.draw(st.sampled_from(("change", "remove", "add"))):
            case "change" if damaged:
                damaged[at] ^= data.draw(st.integers(1, 255))
            case "remove":
                del damaged[at : at + data.draw(st.integers(1, 80))]
            case _:
                damaged[at:at] = data.draw(st.binary(min_size=1, max_size=40))
    found = read(path, bytes(damaged))
    assert found is None or found in PREFIXES


@given(payload=st.binary(max_size=200), is_compressed=st.booleans(), after=st.integers(1, len(FRAMES)))
def test_a_frame_of_anything_with_a_right_checksum_ends_the_segment(
    path: Path, payload: bytes, is_compressed: bool, after: int
) -> None:
    data = zlib.compress(payload) if is_compressed else payload
    frame = struct.pack("<II", len(data), zlib.crc32(data)) + data
    before = b"".join(map(frame_of, FRAMES[:after]))
    found = read(path, MAGIC + before + frame)
    assert found == PREFIXES[after]
    assert read(path, MAGIC + frame) in (None, [])


@given(change=st.tuples(st.integers(0, 400), st.integers(1, 255)))
def test_changed_events_with_a_right_checksum_raise_nothing_else(path: Path, change: tuple[int, int]) -> None:
    """As of a file that somebody wrote on purpose."""
    plain = bytearray(zlib.decompress(frame_of([HEAD, *FRAMES[1], *FRAMES[3]])[8:]))
    plain[change[0] % len(plain)] ^= change[1]
    data = zlib.compress(bytes(plain))
    path.write_bytes(MAGIC + struct.pack("<II", len(data), zlib.crc32(data)) + data)
    try:
        read_recording([path])
    except ConfigError as error:
        assert str(error)
