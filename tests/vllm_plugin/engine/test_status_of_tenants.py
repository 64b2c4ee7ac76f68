"""Service of tenants in vLLM's own scheduler: what its status says, and what counts from other engines."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sloserve.vllm_plugin.server import engine_control

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


def test_the_status_has_what_tenants_had_and_other_engines_count(build: Build, request_of: RequestOf) -> None:
    engine = build("fcfs", section={"tenant_shares": {}})
    scheduler = engine.scheduler
    assert scheduler.status()["tenant_service_s"] == {}
    engine.run([request_of(f"r{i}", 0.0, 20, 20) for i in range(40)])
    (had_s,) = scheduler.status()["tenant_service_s"].values()
    assert had_s > 0.0
    core = SimpleNamespace(scheduler=scheduler, engine_index=1)
    # As they come from the API process, through msgpack and vLLM's conversion of arguments.
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(({"a": 2.0}, [(0, {"a": 1.0}), (1, {"a": 50.0})])))
    from vllm.v1.engine.core import EngineCoreProc

    method = partial(engine_control._set_elsewhere, core)
    method(*EngineCoreProc._convert_msgspec_args(method, sent))
    assert scheduler.tenant_shares._named_elsewhere_s == {"a": 3.0}
    assert engine_control._status(core)["rank"] == 1


def test_a_scheduler_without_shares_says_so_and_counts_nothing(build: Build) -> None:
    scheduler = build("fcfs").scheduler
    assert scheduler.status()["tenant_service_s"] is None
    scheduler.set_elsewhere({"a": 1.0})
