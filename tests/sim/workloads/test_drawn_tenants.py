"""Tenants of a workload: read from a trace, or drawn; and what is no name of a tenant."""

from collections import Counter
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.sim.workloads.drawn_tenants import parse_parts
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.traffic_options import TrafficOptions
from sloserve.sim.workloads.window import parse_window
from sloserve.sim.workloads.workload_registry import Workload, asked_workload, trace_workload

HEADER = "arrival_s,prompt_tokens,output_tokens,tenant\n"


def trace_of(tmp_path: Path, rows: str) -> Workload:
    (tmp_path / "t.csv").write_text(HEADER + rows)
    return trace_workload(read_trace(tmp_path / "t.csv"))


def test_a_trace_states_the_tenant_of_each_request(tmp_path: Path) -> None:
    workload = trace_of(tmp_path, "2,9,1, acme \n0,9,1,globex\n1,0,1,gone\n3,9,1,\n")
    assert [one.tenant for one in workload.requests(9, 0)] == ["globex", "acme", ""]
    assert [one.tenant for one in workload.within(parse_window("0.5:1")).requests(9, 0)] == [""]


@pytest.mark.parametrize("name", ["é", "x" * 129, "a\x07b"])
def test_a_name_that_no_header_can_carry_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.csv:3: column 'tenant': .* is not empty or a name of at most 128"):
        trace_of(tmp_path, f"0,9,1,a\n1,9,1,{name}\n")


@pytest.mark.slow
def test_tenants_are_drawn_in_proportion_and_change_nothing_else() -> None:
    plain, drawn = (
        asked_workload(TrafficOptions(workload="chat-batch-mix", tenants=tenants)).requests(2000, 3)
        for tenants in (None, "acme=3,globex")
    )
    counts = Counter(one.tenant for one in drawn)
    assert set(counts) == {"acme", "globex"} and 1400 < counts["acme"] < 1600
    assert {one.tenant for one in plain} == {""}
    assert [(a.arrival_s, a.prompt_tokens, a.slo) for a in plain] == [
        (b.arrival_s, b.prompt_tokens, b.slo) for b in drawn
    ]


def test_drawn_tenants_replace_those_of_a_trace(tmp_path: Path) -> None:
    trace_of(tmp_path, "0,9,1,old\n1,9,1,old\n")
    asked = asked_workload(TrafficOptions(trace=tmp_path / "t.csv", tenants="new"))
    assert [one.tenant for one in asked.requests(2, 0)] == ["new", "new"]


def test_parts_are_numbers_of_tenants() -> None:
    assert parse_parts("--tenants", "acme=3, globex") == {"acme": 3.0, "globex": 1.0}
    assert len(parse_parts("--tenants", ",".join(f"t{i}" for i in range(1023)))) == 1023


@pytest.mark.parametrize("text", ["", "a,,b", "a,a", "a=0", "a=x", "=2", "a=1e9", "é", "a=nan"])
def test_what_is_no_list_of_tenants_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--tenants: .* is not a tenant that is named once, with a number from 1e-06"
    ):
        parse_parts("--tenants", text)


def test_more_tenants_than_a_server_tells_apart_are_refused() -> None:
    with pytest.raises(ConfigError, match="1024 tenants; the most is 1023"):
        parse_parts("--tenants", ",".join(f"t{i}" for i in range(1024)))
