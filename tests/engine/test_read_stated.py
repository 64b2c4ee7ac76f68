"""What a request states is read once for each combination, and exactly as it would be without that."""

from dataclasses import replace
from typing import Any

import pytest

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import DEFAULT_CLASSES, ClassTable, Targets
from sloserve.core.tenants import TenantTable
from sloserve.engine.read_stated import StatedReader
from sloserve.wire.xargs import LENGTH_KEY, of_further_call, parse_slo, with_internal

GOOD: list[dict[str, Any] | None] = [
    None,
    {},
    {"slo_class": "batch"},
    {"slo_ttft_ms": 500.0, "slo_tpot_ms": "50"},
    {"slo_ttft_ms": 1, "other": [1, 2], 7: "not a name"},
    {"slo_e2e_ms": 9000, "slo_output_tokens": 12},
]
BAD: list[dict[str, Any]] = [
    {"slo_ttft_ms": True},  # which equals 1, and is no number on the wire
    {"slo_ttft_ms": None},
    {"slo_ttft_ms": [500]},
    {"slo_tds": float("nan")},
    {"slo_class": "none such"},
    {"slo_output_tokens": 0},
    {"slo_tfft_ms": 1.0},
]


def test_it_reads_what_is_stated_the_second_time_too() -> None:
    reader = StatedReader(DEFAULT_CLASSES)
    for args in [*GOOD, *GOOD]:
        read = reader.read(args)
        assert read.slo == parse_slo(args, DEFAULT_CLASSES)
        assert DEFAULT_CLASSES.names[read.class_id] == read.slo.slo_class.name
    assert reader.read(GOOD[-1]).output_tokens == 12 and reader.read({"slo_e2e_ms": 9000}).output_tokens is None
    assert reader.read({LENGTH_KEY: [1.0, 2.0, 3.0, 4.0, 5.0]}).length == (1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize("args", BAD, ids=str)
def test_what_is_refused_is_refused_again(args: dict[str, Any]) -> None:
    reader = StatedReader(DEFAULT_CLASSES)
    for good in GOOD:
        reader.read(good)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            reader.read(args)


def test_a_further_call_has_what_is_left_of_the_targets() -> None:
    reader = StatedReader(DEFAULT_CLASSES)
    stated = {"slo_class": "batch", "slo_ttft_ms": 500, "slo_e2e_ms": 2000}
    for elapsed_s in (0.5, 0.75):
        found = reader.read(of_further_call(None, stated, elapsed_s, begun=True))
        assert found.slo == DEFAULT_CLASSES.slo("batch", Targets(e2e_s=2.0 - elapsed_s))
    assert reader.read(stated).slo.targets == Targets(ttft_s=0.5, e2e_s=2.0)


def test_a_tenant_has_one_number_where_tenants_matter() -> None:
    args = [with_internal({"slo_class": "batch"}, tenant=name) for name in ("a", "b", "a", None)]
    reader = StatedReader(DEFAULT_CLASSES, TenantTable({"b": 2.0}))
    assert [reader.read(one).account for one in args] == [2, 1, 2, 0]
    assert [StatedReader(DEFAULT_CLASSES).read(one).account for one in args] == [0, 0, 0, 0]


def test_other_classes_hold_for_requests_that_come_later() -> None:
    reader = StatedReader(DEFAULT_CLASSES)
    before = reader.read({"slo_class": "batch"})
    of_batch = replace(DEFAULT_CLASSES["batch"], targets=Targets(e2e_s=9.0))
    changed = {one.name: of_batch if one.name == "batch" else one for one in DEFAULT_CLASSES}
    reader.follow(ClassTable(changed, DEFAULT_CLASSES.default.name))
    after = reader.read({"slo_class": "batch"})
    assert (before.slo.targets.e2e_s, after.slo.targets.e2e_s) == (None, 9.0) and before.class_id == after.class_id
