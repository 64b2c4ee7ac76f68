"""A value is one line, whoever splits the file, and stays the same value."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sloserve.core.json_lines import as_line, lines_of

SEPARATORS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
texts = st.text(st.sampled_from('a\\"é\u4e2d\U0001f600' + SEPARATORS), max_size=8)
values = st.recursive(texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@given(values)
@example("\\\u2028\\\\\u2029\x85")
def test_a_value_is_one_line_and_the_same(value: Any) -> None:
    for encoded in (msgspec.json.encode(value), json.dumps(value, ensure_ascii=False).encode()):
        line = as_line(encoded)
        assert len(line.decode().splitlines()) == 1 and line.endswith(b"\n")
        assert json.loads(line) == value


@given(st.lists(texts.filter(lambda text: "\n" not in text and not text.endswith("\r")), max_size=5))
def test_lines_end_with_a_line_feed_alone(lines: list[str]) -> None:
    assert lines_of("".join(line + "\n" for line in lines)) == lines
    assert lines_of("".join(line + "\r\n" for line in lines)) == lines


@pytest.mark.parametrize(("text", "lines"), [("", []), ("\n", [""]), ("a", ["a"]), ("a\n\nb", ["a", "", "b"])])
def test_the_last_line_may_have_no_end(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines
