"""Numbers in text: ASCII digits, bounded, and one error that says what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core import numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        (" 12 ", 12.0),
        ("-1.5", -1.5),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("9007199254740992", 2**53),
    ],
)
def test_numbers_that_are_read(text: str, value: float) -> None:
    assert numbers.number(text) == value


ODD = [
    "",
    " ",
    "1_000",
    "١٢",
    "²",
    "１",
    "nan",
    "inf",
    "-Infinity",
    "0x10",
    "1e",
    "1 2",
    "1,5",
    "5\n",
    "\t5",
    "٣e2",
    "true",
]  # noqa: RUF001


@pytest.mark.parametrize("text", [*ODD, "1" * 65])
def test_what_only_python_reads_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number in ASCII digits"):
        numbers.number(text)
    with pytest.raises(ValueError, match="is not a whole number in ASCII digits"):
        numbers.whole(text)


@pytest.mark.parametrize("text", ["1" * 30, "-" + "1" * 30, "9007199254740993000"])
def test_numbers_are_bounded(text: str) -> None:
    for read in (numbers.number, numbers.whole):
        with pytest.raises(ValueError, match="is not within -9007199254740992..9007199254740992"):
            read(text)
    with pytest.raises(ValueError, match="is not within"):
        numbers.number("1e400")


def test_a_number_that_a_conversion_of_its_unit_makes_0_is_refused() -> None:
    for text in ("5e-324", "-1e-301"):
        with pytest.raises(ValueError, match=r"is too near to 0 \(below 1e-300\)"):
            numbers.number(text)
    assert numbers.number("1e-300") / 1e3 > 0.0 == numbers.number("0e-999")


def test_a_whole_number_has_no_point() -> None:
    assert numbers.whole("-12") == -12
    for text in ("1.0", "1e3"):
        with pytest.raises(ValueError, match="whole"):
            numbers.whole(text)


@given(st.floats(min_value=-(2.0**53), max_value=2.0**53).filter(lambda value: not numbers.is_tiny(value)))
def test_every_number_in_range_is_read_back(value: float) -> None:
    assert numbers.number(repr(value)) == value


@given(st.text(max_size=70))
def test_any_text_is_a_bounded_number_or_a_value_error(text: str) -> None:
    try:
        assert abs(numbers.number(text)) <= 2**53
    except ValueError as error:
        assert len(str(error)) < 200
