"""Statements for many rows at once: each database gives them the same rows. One suite for both."""

from collections.abc import Sequence
from typing import Any

import pytest

from sloserve.fleet.store.records import DurableRequest, RequestState, Result
from sloserve.fleet.store.store import Store as OpenStore
from tests.fleet.store.databases import Store

TEXTS = [
    "plain",
    "",
    "NULL",
    "null",
    'a"b',
    "a\\",
    '\\\\"',
    "{a,b}",
    ",",
    " a ",
    "\n\t\r",
    "é\U0001f600",
    "'",
    "%s",
    ":x",
    None,
]
BYTES = [b"", b"\x00", b"\\x00", b'"{},', bytes(range(256)), b"x" * 100_000]
NUMBERS = [0, -1, 2**62, None]
REALS = [0.1, -1e300, 5e-324, 3, None]
ALL = "SELECT n, t, b, i, d FROM many ORDER BY n"


def rows(store: Store, params: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    database = store.open()
    with database.transaction() as session:
        session.change("CREATE TABLE many (n SERIAL_KEY, t text, b BYTES, i bigint, d double precision)")
        written = session.given(
            "INSERT INTO many (t, b, i, d) SELECT given.t, given.b, given.i, given.d "
            "FROM GIVEN(t text, b BYTES, i bigint, d double precision) RETURNING i",
            params,
        )
        assert [i for (i,) in written] == [one["i"] for one in params]
        return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in session.rows(ALL)]


def test_rows_are_kept_as_they_are_in_their_order(store: Store) -> None:
    params = [
        {"t": TEXTS[n % len(TEXTS)], "b": BYTES[n % len(BYTES)], "i": NUMBERS[n % 4], "d": REALS[n % 5]}
        for n in range(240)
    ]
    expected = [(n, p["t"], p["b"], p["i"], p["d"]) for n, p in enumerate(params, start=1)]
    assert rows(store, params) == expected


def test_columns_of_nothing_but_null_are_kept(store: Store) -> None:
    assert rows(store, [dict.fromkeys("tbid")] * 2) == [(1, None, None, None, None), (2, None, None, None, None)]


def test_no_rows_change_nothing(store: Store) -> None:
    assert rows(store, []) == []


def test_a_text_that_no_database_keeps_changes_nothing(store: Store) -> None:
    requests = OpenStore(store.open()).requests
    with pytest.raises(UnicodeEncodeError):
        requests.accept([DurableRequest(id, "t", "m", "batch", 1, b"", batch="b") for id in ("a", "b\udcff")])
    assert requests.counts("b") == {}


def test_of_two_results_of_one_attempt_the_first_counts(store: Store) -> None:
    requests = OpenStore(store.open()).requests
    assert requests.accept([DurableRequest(id, "t", "m", "batch", 1, b"", batch="b") for id in ("a", "b", "a")]) == 2
    assert requests.claim("x", 1, 9, 30.0) is not None
    results = [
        Result("a", 2, RequestState.DONE, 200, b"of no attempt"),
        Result("a", 1, RequestState.FAILED, 500, b"first"),
        Result("b", 1, RequestState.DONE, 200, b"b"),
        Result("a", 1, RequestState.DONE, 200, b"second"),
        Result("c", 1, RequestState.DONE, 200, b"of no request"),
    ]
    assert requests.finish(results) == [False, True, True, False, False]
    assert requests.finish(results) == [False] * 5
    found = {row.id: (row.state, row.status, row.body) for row in requests.results("b")}
    assert found == {"a": (RequestState.FAILED, 500, b"first"), "b": (RequestState.DONE, 200, b"b")}


def test_of_two_requests_with_one_id_the_first_is_kept(store: Store) -> None:
    requests = OpenStore(store.open()).requests
    twice = [DurableRequest("a", "t", "m", "batch", 1, body, batch="b") for body in (b"first", b"second")]
    assert requests.accept(twice) == 1
    claim = requests.claim("x", 1, 9, 30.0)
    assert claim is not None and [bytes(one.body) for one in claim.requests] == [b"first"]
