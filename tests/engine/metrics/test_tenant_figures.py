"""Figures of tenants: rows of a page that keep their tenants, sums that stay right, and labels of a bounded number."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from sloserve.core.clock import ManualClock
from sloserve.core.tenants import OTHER, TenantTable
from sloserve.engine.metrics.collectors import TenantLabels
from sloserve.engine.metrics.engine_metrics import PageCollector
from sloserve.engine.metrics.engine_page import Layout, PageWriter, find_pages
from sloserve.engine.metrics.process_page import MOST_TENANT_WINDOWS, Board, Boards
from sloserve.engine.metrics.tenant_figures import FIGURES, NAME_BYTES, TenantFigures, TenantRows, named_tenants
from sloserve.engine.tenant_shares import Balances, TenantShares
from sloserve.scheduler.settings import plugin_settings

CLASSES = ("urgent",)


class Engine:
    """An engine with a page, on which each tenant has its number as its service and its requests."""

    def __init__(self, folder: Path, most: int, named: list[str], rank: int = 0, **weights: float) -> None:
        self.rows = TenantRows(most, named)
        self.shares = TenantShares(TenantTable(weights), 30.0)
        self.page = PageWriter(CLASSES, rank, folder, tenant_rows=self.rows.size)
        self.first = Layout(1, self.rows.size).tenants

    def serves(self, *tenants: str) -> None:
        for tenant in tenants:
            self.shares.tenants.number_of(tenant)
        size = len(self.shares.tenants)
        number = np.arange(size, dtype=float)
        self.shares._of_tenants.service_s = self.shares._of_tenants.total_s = number
        balances = Balances(np.arange(size), np.arange(size), number, number / max(number.sum(), 1.0), np.ones(size))
        self.page.values[self.first :] = self.rows.figures(self.shares, balances).ravel()
        self.page.name_tenants(self.rows.names)


def seen(folder: Path, rank: int = 0) -> dict[str | None, TenantFigures]:
    return {one.tenant: one for one in find_pages(folder)[rank].snapshot().tenants}


def test_an_engine_on_which_tenants_have_no_shares_shows_none(tmp_path: Path) -> None:
    PageWriter(CLASSES, 0, tmp_path)
    assert seen(tmp_path) == {} and TenantRows.of(plugin_settings({})) is None


def test_a_tenant_keeps_its_row_and_the_rest_is_summed(tmp_path: Path) -> None:
    engine = Engine(tmp_path, 3, ["late"], big=4.0)
    engine.serves("a", "b")
    assert list(seen(tmp_path)) == [None, "late", "big", "a", OTHER]
    engine.serves("c", "late")
    found = seen(tmp_path)
    assert list(found) == [None, "late", "big", "a", OTHER]
    assert {name: one.total_s for name, one in found.items()} == {None: 0, "late": 5, "big": 1, "a": 2, OTHER: 3 + 4}
    assert found["big"].weight == 4.0 and sum(one.share for one in found.values()) == pytest.approx(1.0)


@given(
    st.lists(st.lists(st.text(max_size=3), max_size=6), max_size=6),
    st.integers(0, 4),
    st.lists(st.text(max_size=2), max_size=3),
)
def test_no_row_ever_changes_its_tenant_and_no_counter_falls(
    arrivals: list[list[str]], most: int, named: list[str]
) -> None:
    rows, shares = TenantRows(most, named), TenantShares(TenantTable(), 30.0)
    before, names = np.zeros(rows.size), list(rows.names)
    for tenants in arrivals:
        for tenant in tenants:
            shares.tenants.number_of(tenant)
        size = len(shares.tenants)
        shares._of_tenants.service_s = shares._of_tenants.total_s = grown = np.arange(1.0, size + 1.0)
        found = rows.figures(shares, Balances(*[np.zeros(size)] * 5))  # type: ignore[arg-type]
        total_s = found[:, FIGURES.index("total_s")]
        assert (total_s >= before).all() and total_s.sum() == grown.sum()
        assert rows.names[: len(names)] == names and len(rows.names) < rows.size
        before, names = total_s, list(rows.names)


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "\x1b[2J", "été \U0001f600", "\ud800", "x" * 9999])
def test_a_name_is_text_of_bounded_length(tmp_path: Path, name: str) -> None:
    engine = Engine(tmp_path, 2, [])
    engine.serves(name, "next")
    written = name.encode(errors="replace")[:NAME_BYTES].decode()
    assert list(seen(tmp_path)) == [None, written, "next"]


def samples(collector: PageCollector) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.startswith("sloserve:tenant_") and not sample.name.endswith("_created")
    }


def test_each_tenant_has_its_metrics_and_those_without_a_label_are_summed(tmp_path: Path) -> None:
    Engine(tmp_path, 5, []).serves("a", "b", "c", "d")
    boards = Boards(Board(1, 2), ManualClock())
    collector = PageCollector(lambda: [page.snapshot() for page in find_pages(tmp_path)], TenantLabels([], boards).of)
    found = samples(collector)
    service = {key[2]: value for key, value in found.items() if key[0] == "sloserve:tenant_service_seconds_total"}
    assert service == {"none": 0.0, "a": 1.0, "b": 2.0, "other": 7.0}
    assert found["sloserve:tenant_share", "0", "other", "served"] == pytest.approx(0.7)
    assert found["sloserve:tenant_share", "0", "b", "fair"] == pytest.approx(0.2)
    assert found["sloserve:tenant_debt_seconds", "0", "other"] == 2.0


def test_a_tenant_that_is_called_as_a_label_of_ours_does_not_break_a_scrape(tmp_path: Path) -> None:
    Engine(tmp_path, 2, []).serves("none", "other", "third")
    found = samples(PageCollector(lambda: [page.snapshot() for page in find_pages(tmp_path)]))
    assert found["sloserve:tenant_service_seconds_total", "0", "other"] == 2.0 + 3.0


def test_the_operator_names_tenants_by_their_weights_and_by_their_classes() -> None:
    section = {"policy": "edf", "tenants": {"acme": "batch"}, "tenant_shares": {"weights": {"acme": 2, "big": 1}}}
    settings = plugin_settings({"sloserve": section})
    assert named_tenants(settings) == ["acme", "big"]
    rows = TenantRows.of(settings)
    assert rows is not None and rows.names == ["", "acme", "big"] and rows.size == 50 + 2


def test_a_board_remembers_requests_of_a_bounded_number_of_tenants() -> None:
    assert len(Board(1, 10**6).tenant_ended) == 1 + MOST_TENANT_WINDOWS
