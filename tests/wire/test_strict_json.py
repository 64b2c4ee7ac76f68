"""What is no JSON by its standard, or says one thing twice, is refused with a reason; all else is read as by Python."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.wire import strict_json


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"n": NaN}', "has 'NaN', which is not a number in JSON; leave it out"),
        (b"[-Infinity]", "has '-Infinity'"),
        (b"[1e999]", "has '1e999'"),
        (b"[-1" + b"0" * 309 + b"]", "which is not a number in JSON"),
        (b'{"a": {"n": 1, "\\u006e": 2}}', "has the key 'n' more than once in one object; keep one"),
        (b"{", "is not JSON: "),
        (b"\xff", "is not JSON: "),
        (b"[" * 100_000, "nested too deep"),
        (b"1" * 5_000, "is not JSON: "),
    ],
)
def test_what_is_wrong_is_said(text: bytes, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        strict_json.loads(text)
    assert says in str(raised.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_what_json_can_say_is_read(value: object) -> None:
    assert strict_json.loads(json.dumps(value).encode()) == value
