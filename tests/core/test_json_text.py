"""Figures as JSON: what JSON has no number for is null, when it is written and when it is read."""

import json
import math

import pytest

from sloserve.core import json_text

FIGURES = {"a": math.nan, "b": [1.0, math.inf, (-math.inf, 2)], "c": {"d": math.nan, "e": "NaN"}, "f": None}


def test_what_is_no_number_is_written_as_null() -> None:
    written = json_text.dumps(FIGURES, indent=1)
    assert json.loads(written, parse_constant=pytest.fail) == {
        "a": None,
        "b": [1.0, None, [None, 2]],
        "c": {"d": None, "e": "NaN"},
        "f": None,
    }


def test_figures_of_other_programs_are_read_alike() -> None:
    text = '{"a": NaN, "b": [-Infinity, 1e999, 5, 2.5], "c": ' + "9" * 400 + ', "d": ' + "9" * 30 + "}"
    assert json_text.loads_figures(text) == {"a": None, "b": [None, None, 5, 2.5], "c": None, "d": 1e30}


def test_an_answer_with_half_a_character_is_written_all_the_same() -> None:
    assert json_text.compact({"text": "héé\u2028"}) == '{"text":"héé\u2028"}'.encode()
    cut = {"text": "a\ud83d"}
    assert json.loads(json_text.compact(cut)) == cut
