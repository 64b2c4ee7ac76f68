"""Limits of tenants of a server of several API processes, each with a page, and what a request is told of them."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from sloserve.api.tenant_limits import TenantLimits
from sloserve.core.clock import ManualClock
from sloserve.core.errors import QueueFull, RateLimited
from sloserve.engine.metrics import tenant_page
from sloserve.engine.metrics.tenant_page import TenantPage
from sloserve.scheduler.server_keys import ServerQuota, ServerTenant
from sloserve.wire.keys import hash_of
from tests.api.test_callers import Site

LIMITED = ServerTenant("a", quota=ServerQuota(requests=4, requests_per_minute=60, tokens_per_minute=600))
OTHER = ServerTenant("b", quota=LIMITED.quota)


class Processes:
    """API processes of one server, each with its limits; time passes for all at once."""

    def __init__(self, count: int, folder: Path) -> None:
        self.clock = ManualClock(1000.0)
        self.limits = [TenantLimits(self.clock) for _ in range(count)]
        for rank, limits in enumerate(self.limits):
            limits.share(TenantPage.create(rank, folder), count - 1)

    def exchange(self, seconds: float = 1.0) -> None:
        self.clock.advance_to(self.clock.now_s() + seconds)
        for limits in self.limits:
            limits.exchange([LIMITED, OTHER])


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    found = Processes(3, tmp_path)
    yield found
    for limits in found.limits:
        limits.close()
    assert list(tmp_path.iterdir()) == []
    del found
    gc.collect()


def test_requests_in_progress_count_in_all_processes(processes: Processes) -> None:
    one, two, three = processes.limits
    with ExitStack() as held:
        for limits in (one, two, three, three):
            limits.admit(LIMITED, held)
        for limits in processes.limits:
            with (
                ExitStack() as refused,
                pytest.raises(QueueFull, match="4 of 4 requests of yours are in progress") as full,
            ):
                limits.admit(LIMITED, refused)
            assert full.value.of_tenant
            limits.admit(OTHER, held)
    with ExitStack() as held:
        two.admit(LIMITED, held)


@pytest.mark.slow
def test_a_limit_per_minute_holds_for_all_processes_together(processes: Processes) -> None:
    admitted = 0
    for turn in range(300):
        with ExitStack() as held:
            try:
                processes.limits[turn % 3].admit(LIMITED, held)
                admitted += 1
            except RateLimited:
                pass
    assert admitted == 60, "each request is published at once"
    for _ in range(60):
        processes.exchange()
    for limits in processes.limits:
        with ExitStack() as held:
            limits.admit(LIMITED, held)


def test_tokens_of_others_count_after_an_exchange(processes: Processes) -> None:
    one, two, _ = processes.limits
    with ExitStack() as held:
        use = one.admit(LIMITED, held)
        use.output(900)
        two.admit(LIMITED, held)
    processes.exchange(0.0)
    processes.exchange(0.0)
    for limits in processes.limits:
        with ExitStack() as held, pytest.raises(RateLimited) as caught:
            limits.admit(LIMITED, held)
        assert caught.value.retry_after_s == 30
        with ExitStack() as held:
            limits.admit(OTHER, held)


@pytest.mark.slow
def test_use_of_long_ago_that_is_learned_regularly_is_not_charged_again(processes: Processes) -> None:
    one, two, _ = processes.limits
    for _ in range(600):
        with ExitStack() as held:
            one.admit(LIMITED, held).output(9)  # a little less than what flows in
        processes.exchange()
    with ExitStack() as held:
        remaining = dict(two.admit(LIMITED, held).headers())["x-ratelimit-remaining-tokens"]
    assert int(remaining) > 580


def test_a_process_that_ended_leaves_no_requests_in_progress(processes: Processes) -> None:
    one, two, _ = processes.limits
    with ExitStack() as held:
        for _ in range(4):
            one.admit(LIMITED, held)
        one.close()
        processes.limits.remove(one)
        processes.exchange()
        two.admit(LIMITED, held)


def test_tenants_beyond_the_rows_are_counted_by_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_page, "ROWS", 1)
    page = TenantPage.create(0, tmp_path)
    page.publish("a", 1, 2, 3)
    page.publish("b", 4, 5, 6)
    (read,) = TenantPage.create(1, tmp_path).others([])
    assert read.read("a") == (1.0, 2.0, 3.0) and read.read("b") == (0.0, 0.0, 0.0)
    page.memory.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    quota = "{requests_per_minute: 2, tokens_per_minute: 600}"
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"tenants: {{a: {{keys: ['{hash_of('k')}'], metrics: true, quota: {quota}}}}}")
    return Site({"keys": str(keys)})


def test_a_client_reads_its_limits_and_when_to_come_again(site: Site) -> None:
    served = site.ask(key="k", json={"prompt": "x" * 2000})
    assert served.headers["x-ratelimit-limit-tokens"] == "600"
    assert int(served.headers["x-ratelimit-remaining-tokens"]) < 110, "an estimate, until the prompt's length is known"
    assert served.headers["x-ratelimit-remaining-requests"] == "1"
    assert site.ask(key="k", json={}).headers["x-ratelimit-remaining-tokens"] == "600", "it has generated nothing"
    refused = site.ask(key="k", json={})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
    assert refused.headers["x-ratelimit-reset-requests"] == "60s"
    assert refused.json()["error"]["message"] == (
        "2 of 2 requests per minute are used (requests_per_minute of your key's tenant); retry in 30 s"
    )
    assert site.ask("/v1/messages", key="k").json()["error"]["type"] == "rate_limit_error"
    assert [site.ask(path, key="k", method="GET").status_code for path in ("/v1/models", "/metrics/")] == [200, 200]
    site.clock.advance_to(site.clock.now_s() + 30.0)
    assert site.ask(key="k").status_code == 200


def test_what_a_tenant_s_limit_refuses_unread_is_counted_by_the_class_that_its_headers_name(tmp_path: Path) -> None:
    """Such refusals were in recordings alone, and no metric had them."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"""
tenants:
  a: {{keys: ['{hash_of("k")}'], class: interactive, quota: {{requests_per_minute: 1}}}}
""")
    site, counted = Site({"keys": str(keys), "max_body_bytes": 1000}), Mock()
    counted.live = None
    site.app.state.engine_client.sloserve_front_end = counted
    assert site.ask(key="k").status_code == 200
    for asked in ([("x-slo-class", "batch")], [("x-slo-class", "priority")], [], [("x-slo-class", "nosuch")]):
        assert site.ask(key="k", headers=asked).status_code == 429
    site.clock.advance_to(site.clock.now_s() + 60.0)
    assert site.ask(key="k", headers=[("x-slo-class", "batch")], content=b"x" * 1001).status_code == 413
    limited, too_large = ("tenant-limit", "a"), ("body-too-large", "a")
    assert [call.args for call in counted.count_unread.call_args_list] == [
        (*limited, "batch"), (*limited, "interactive"), (*limited, None), (*limited, None), (*too_large, "batch"),
    ]  # fmt: skip
