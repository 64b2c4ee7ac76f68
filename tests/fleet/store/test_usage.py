"""Use by tenant and hour in the store, and limits per minute that gateways share through it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.clock import ManualClock
from sloserve.core.errors import RateLimited, StoreAway
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.shared_use import SharedUse
from sloserve.fleet.store.records import DurableRequest, LineUse, RequestState, Result
from sloserve.fleet.store.store import Store as OpenStore
from sloserve.fleet.store.store import open_store
from sloserve.fleet.store.usage import HOUR_S, KEPT_HOURS, UsedInHour
from sloserve.fleet.tenant_limits import Quota
from sloserve.fleet.usage_report import as_text
from sloserve.wire.rate_limits import TenantRates
from tests.fleet.gateway.played_agents import FLEET
from tests.fleet.store.databases import Store


@pytest.fixture
def opened(store: Store) -> OpenStore:
    return OpenStore(store.open())


def test_rows_add_up_by_hour_and_old_ones_go(opened: OpenStore, store: Store) -> None:
    first_s = opened.usage.add({"b": (1, 10, 100), "a": (2, 20, 200)})
    opened.usage.add({"a": (1, -5, 0)})
    store.pass_s(float(HOUR_S))
    second_s = opened.usage.add({"a": (7, 8, 9)})
    assert second_s == first_s + HOUR_S and first_s % HOUR_S == 0
    both = [UsedInHour("a", first_s, 3, 15, 200), UsedInHour("b", first_s, 1, 10, 100)]
    assert opened.usage.since(2) == [*both, UsedInHour("a", second_s, 7, 8, 9)]
    assert opened.usage.since(1) == [UsedInHour("a", second_s, 7, 8, 9)]
    store.pass_s(float(HOUR_S) * KEPT_HOURS)
    last_s = opened.usage.add({"a": (1, 1, 1)})
    assert [row.hour_s for row in opened.usage.since(2 * KEPT_HOURS)] == [second_s, last_s]


class Gateways:
    """Gateways on one store, which exchange one after the other."""

    def __init__(self, store: OpenStore, count: int, quota: Quota) -> None:
        self.store, self.clock = store, ManualClock(1000.0)
        self.tenant = Tenant("a", quota=quota)
        self.rates = [TenantRates(self.clock) for _ in range(count)]
        self.shared = [SharedUse(rates, lambda: [self.tenant]) for rates in self.rates]

    def exchange(self, *which: int) -> None:
        for i in which or range(len(self.rates)):
            due = self.shared[i].due()
            self.shared[i].exchanged(due, SharedUse.exchange(self.store, due))

    def admitted(self, i: int, tries: int = 1000) -> int:
        for n in range(tries):
            try:
                self.rates[i].admit("a", self.tenant.quota)
            except RateLimited:
                return n
        return tries


def test_a_limit_holds_for_all_gateways_but_for_what_the_others_let_pass_between_two_exchanges(
    opened: OpenStore,
) -> None:
    gateways = Gateways(opened, 3, Quota(requests_per_minute=60))
    gateways.exchange()
    assert [gateways.admitted(i, 20) for i in range(3)] == [20, 20, 20]
    gateways.exchange()
    gateways.exchange()
    assert [gateways.admitted(i) for i in range(3)] == [0, 0, 0]
    gateways.clock.advance_to(gateways.clock.now_s() + 10.0)
    assert gateways.admitted(0) == 10
    gateways.exchange()
    assert [gateways.admitted(i) for i in range(3)] == [0, 0, 0]
    assert sum(row.requests for row in opened.usage.since(1)) == 70


def test_own_use_is_charged_once_and_corrections_give_back(opened: OpenStore, store: Store) -> None:
    gateways = Gateways(opened, 2, Quota(tokens_per_minute=1000))
    opened.usage.add({"a": (1, 10**9, 0)})  # long before these gateways began
    gateways.exchange()
    use = gateways.rates[0].admit("a", gateways.tenant.quota)
    use.totals(600, 0)
    for _ in range(3):
        gateways.exchange()
    store.pass_s(float(HOUR_S))  # the next rows are of another hour
    use.totals(600, 300)
    for _ in range(3):
        gateways.exchange()
    left = [dict(rates.admit("a", gateways.tenant.quota).headers()) for rates in gateways.rates]
    assert [one["x-ratelimit-remaining-tokens"] for one in left] == ["100", "100"]
    use.totals(100, 100)
    for _ in range(2):
        gateways.exchange()
    left = [dict(rates.admit("a", gateways.tenant.quota).headers()) for rates in gateways.rates]
    assert [one["x-ratelimit-remaining-tokens"] for one in left] == ["800", "800"]


def test_promises_of_all_gateways_are_in_the_rows(opened: OpenStore) -> None:
    gateways = Gateways(opened, 2, Quota())
    for i, outcomes in enumerate((("kept", "broken"), ("kept", "kept", "withdrawn"))):
        for outcome in outcomes:
            gateways.rates[i].admit("a", gateways.tenant.quota).promise_ended(outcome)
        gateways.exchange()
    gateways.rates[0].admit("a", gateways.tenant.quota)
    for _ in range(2):
        gateways.exchange()
    (row,) = opened.usage.since(1)
    assert (row.requests, row.promises_kept, row.promises_broken, row.promises_withdrawn) == (6, 3, 1, 1)


def test_lines_of_batches_are_counted_with_their_results_and_against_no_limit_per_minute(opened: OpenStore) -> None:
    gateways = Gateways(opened, 1, Quota(requests_per_minute=60, tokens_per_minute=1000))
    gateways.exchange()
    lines = [DurableRequest(name, "a", "m", "batch", 1, b"{}") for name in ("sent", "lost", "unsent")]
    opened.requests.accept(lines)
    claim = opened.requests.claim("agent", 1, 3, 30.0)
    assert claim is not None and [one.tenant for one in claim.requests] == ["a"] * 3
    use = LineUse("a", 300, 5_000, 1_500)
    results = [Result(one.id, one.attempt, RequestState.DONE, 200, b"", use) for one in claim.requests]
    results[1] = replace(results[1], attempt=2)  # another agent's by now
    results[2] = replace(results[2], used=None, state=RequestState.EXPIRED)
    assert opened.requests.finish(results) == [True, False, True]
    assert opened.requests.finish(results) == [False] * 3
    gateways.exchange()
    assert gateways.admitted(0, 10) == 10
    gateways.exchange()
    (row,) = opened.usage.since(1)
    assert (row.requests, row.prompt_tokens, row.output_tokens) == (10, 0, 0)
    assert (row.batch_lines, row.batch_prompt_tokens, row.batch_output_tokens, row.batch_engine_ms) == (
        1,
        300,
        5_000,
        1_500,
    )


def test_what_could_not_be_added_is_added_later(opened: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways(opened, 2, Quota(requests_per_minute=60))
    gateways.exchange()
    gateways.admitted(0, 30)

    def away(*_: object) -> None:
        raise StoreAway("away")

    with monkeypatch.context() as patch:
        patch.setattr(opened.usage, "add", away)
        with pytest.raises(StoreAway):
            gateways.exchange(0)
        assert gateways.admitted(0, 10) == 10, "the store is not needed to serve"
    gateways.exchange()
    gateways.exchange()
    assert [gateways.admitted(i) for i in range(2)] == [20, 20]
    assert opened.usage.since(1)[0].requests == 40


ROWS = [
    UsedInHour("acme", 1_700_000_000 // HOUR_S * HOUR_S, 3, 20, 100, 2, 1, 0, 7, 70, 700, 1500),
    UsedInHour("b", 0, 1, 2, 3),
]


def test_rows_as_text() -> None:
    assert as_text(ROWS, "table").splitlines() == [
        "hour               tenant  requests  prompt_tokens  output_tokens  promises_kept  promises_broken  "
        "promises_withdrawn  batch_lines  batch_prompt_tokens  batch_output_tokens  batch_engine_ms",
        "2023-11-14T22:00Z  acme    3         20             100            2              1                "
        "0                   7            70                   700                  1500",
        "1970-01-01T00:00Z  b       1         2              3              0              0                "
        "0                   0            0                    0                    0",
    ]
    assert as_text(ROWS, "csv").splitlines()[:2] == [
        "hour,tenant,requests,prompt_tokens,output_tokens,promises_kept,promises_broken,promises_withdrawn,"
        "batch_lines,batch_prompt_tokens,batch_output_tokens,batch_engine_ms",
        "2023-11-14T22:00Z,acme,3,20,100,2,1,0,7,70,700,1500",
    ]
    assert json.loads(as_text(ROWS, "json"))[1] == {
        "hour": "1970-01-01T00:00Z",
        "tenant": "b",
        "requests": 1,
        "prompt_tokens": 2,
        "output_tokens": 3,
        "promises_kept": 0,
        "promises_broken": 0,
        "promises_withdrawn": 0,
        "batch_lines": 0,
        "batch_prompt_tokens": 0,
        "batch_output_tokens": 0,
        "batch_engine_ms": 0,
    }


def test_the_command_prints_the_rows_of_a_fleets_store(tmp_path: Path) -> None:
    from sloserve.fleet.file import read_fleet
    from sloserve.fleet.run.live import place_of

    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("{profile:", "{model: m, profile:"))
    store = open_store(place_of(read_fleet(file, to_run=True), tmp_path / "state").store)
    store.usage.add({"acme": (1, 2, 3)})
    store.close()
    shown = CliRunner().invoke(app, ["fleet", "usage", str(file), "--state", str(tmp_path / "state"), "--csv"])
    assert shown.exit_code == 0, shown.exception
    assert shown.output.splitlines()[1].endswith(",acme,1,2,3" + ",0" * 7)
