"""Frames of live requests: what an engine writes its watchers read whole, and nobody else has it write."""

from pathlib import Path

import numpy as np
import pytest

from sloserve.core.arrays import FloatArray
from sloserve.engine.metrics import live_page
from sloserve.engine.metrics.live_page import (
    MOST_ROWS,
    NEAR,
    ROW,
    WATCH_S,
    Frame,
    LiveReader,
    LiveWriter,
    drawn_first,
    find_live_pages,
)
from sloserve.engine.why import Cause, RequestPhase, Why


@pytest.fixture
def page(tmp_path: Path) -> tuple[LiveWriter, LiveReader]:
    writer = LiveWriter(2, 0, tmp_path)
    (reader,) = find_live_pages(tmp_path)
    return writer, reader


def frame(at_s: float, rows: int = 3, foreseen: FloatArray | None = None) -> Frame:
    return Frame(
        at_s=1e9 + at_s,
        at_monotonic_s=at_s,
        live=rows,
        free_blocks=4,
        total_blocks=60,
        head=Cause(Why.BLOCKS, 12.0, 4.0),
        counts=np.arange(2 * len(RequestPhase)).reshape(2, len(RequestPhase)),
        late=np.array([1, 0]),
        missed=np.array([3, 2]),
        next_due_s=np.array([5.0, np.nan]),
        foreseen=foreseen,
        rows=np.arange(rows * len(ROW), dtype=np.float64).reshape(rows, len(ROW)) + at_s,
    )


def test_a_frame_is_read_as_it_was_written(page: tuple[LiveWriter, LiveReader]) -> None:
    writer, reader = page
    reader.watch(100.0)
    foreseen = np.stack((np.linspace(50, 58, NEAR.size), np.linspace(0, 4, NEAR.size)))
    for at_s, known in ((100.0, foreseen), (100.5, None), (101.0, foreseen)):
        written = frame(at_s, 3, known)
        writer.write(written)
        found = reader.frame()
        assert found is not None
        for name, value in vars(written).items():
            np.testing.assert_equal(getattr(found, name), value, name)


def test_only_who_watches_has_frames_written(page: tuple[LiveWriter, LiveReader]) -> None:
    writer, reader = page
    assert not writer.is_watched(100.0)
    reader.watch(100.0)
    assert writer.is_watched(100.0 + WATCH_S - 0.01) and not writer.is_watched(100.0 + WATCH_S)


def test_what_was_written_for_an_earlier_watch_is_not_shown(page: tuple[LiveWriter, LiveReader]) -> None:
    writer, reader = page
    reader.watch(100.0)
    writer.write(frame(100.0))
    reader.watch(101.0)
    assert reader.frame() is not None
    reader.watch(200.0)
    assert reader.frame() is None  # the engine may have served all of these meanwhile, and be idle


def test_rows_beyond_the_most_are_left_out(page: tuple[LiveWriter, LiveReader]) -> None:
    writer, reader = page
    reader.watch(0.0)
    writer.write(frame(0.0, MOST_ROWS + 50))
    found = reader.frame()
    assert found is not None and found.rows.shape == (MOST_ROWS, len(ROW)) and found.live == MOST_ROWS + 50


def test_a_frame_that_is_overwritten_while_it_is_read_is_read_again(
    page: tuple[LiveWriter, LiveReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = page
    reader.watch(0.0)
    writer.write(frame(0.0))
    floats = reader._memory.floats

    class Interrupted:
        """The page's slots, between whose readings the engine writes two frames, once."""

        done = False

        def __getitem__(self, at: int | slice) -> object:
            found = floats[at]
            if isinstance(at, slice) and not self.done:
                self.done = True
                writer.write(frame(0.5, 2))
                writer.write(frame(1.0, 1))
            return found

    monkeypatch.setattr(reader, "_memory", type("Memory", (), {"floats": Interrupted()})())
    found = reader.frame()
    assert found is not None and found.at_monotonic_s == 1.0 and found.live == 1


def test_a_page_takes_little_memory(page: tuple[LiveWriter, LiveReader], tmp_path: Path) -> None:
    (file,) = tmp_path.iterdir()
    assert file.suffix == live_page.LIVE and file.stat().st_size < 64 * 1024


def test_requests_that_can_still_be_in_time_are_drawn_beside_late_ones_of_every_class() -> None:
    """300 late requests of one class, which are due first, 50 of another, and 400 that can still be in time."""
    class_id = np.repeat([0, 1, 2], [300, 50, 400])
    due_s = np.concatenate((np.arange(300.0), 200.0 + np.arange(50.0), 1000.0 + np.arange(400.0)[::-1]))
    missed = class_id < 2
    drawn = drawn_first(due_s, class_id, missed, 200)
    assert np.bincount(class_id[drawn]).tolist() == [25, 25, 150] and np.unique(drawn).size == 200
    assert due_s[drawn[class_id[drawn] == 2]].max() == 1149.0 and due_s[drawn[class_id[drawn] == 0]].max() == 24.0
    # What one part leaves goes to the other one.
    assert np.bincount(class_id[drawn_first(due_s[:350], class_id[:350], missed[:350], 200)]).tolist() == [150, 50]
    few = np.flatnonzero(class_id == 2)
    assert drawn_first(due_s[few], class_id[few], missed[few], 200).size == 200
    few = np.concatenate((np.arange(200), few[:10]))
    assert np.bincount(class_id[few][drawn_first(due_s[few], class_id[few], missed[few], 200)]).tolist() == [190, 0, 10]
