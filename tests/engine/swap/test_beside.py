"""Copies that go on beside steps: which step waits for which of them."""

from sloserve.engine.swap.beside import MOST_BLOCKS, BesideCopies


def test_a_step_waits_for_a_copy_with_blocks_that_it_may_write_and_for_those_before_it() -> None:
    copies, intact = BesideCopies(), {1, 2, 3}
    assert [copies.begins(9.0, 1, lambda number=number: number in intact) for number in (1, 2, 3)] == [1, 2, 3]  # type: ignore[misc]
    assert copies.awaited(0.0) == 0
    intact.remove(2)
    assert copies.awaited(1.0) == 2 and len(copies) == 1
    assert copies.awaited(2.0) == 0
    assert copies.begins(9.0, 1, lambda: False) == 4
    assert copies.awaited(3.0) == 4 and len(copies) == 0


def test_a_copy_that_must_have_ended_is_waited_for_and_forgotten() -> None:
    """The wait takes no time where the prediction was right, and nothing is overwritten where it was not."""
    copies = BesideCopies()
    copies.begins(1.0, 1, lambda: True)
    copies.begins(2.0, 1, lambda: True)
    assert [copies.awaited(now_s) for now_s in (0.5, 1.0, 1.5, 2.0, 3.0)] == [0, 1, 0, 2, 0]


def test_a_step_looks_at_a_bounded_number_of_blocks_and_waits_for_the_older_copies() -> None:
    copies, looked = BesideCopies(), list[int]()
    third = MOST_BLOCKS // 3

    def is_there(number: int) -> bool:
        looked.append(number)
        return True

    for number in range(1, 4):
        copies.begins(9.0, third, lambda number=number: is_there(number))  # type: ignore[misc]
    assert copies.awaited(0.0) == 1 and looked == [3, 2] and len(copies) == 2
    copies.begins(9.0, MOST_BLOCKS, lambda: is_there(4))
    assert copies.awaited(0.0) == 4 and looked == [3, 2] and len(copies) == 0


def test_a_step_that_waits_for_a_copy_does_not_look_at_older_ones() -> None:
    copies, looked = BesideCopies(), list[int]()
    for number in (1, 2):
        copies.begins(9.0, 1, lambda number=number: looked.append(number) is not None)  # type: ignore[misc]
    assert copies.awaited(0.0) == 2 and looked == [2]
