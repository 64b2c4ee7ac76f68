"""Limits per minute: what passes, what is counted, and when a client may come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.clock import ManualClock
from sloserve.core.errors import RateLimited
from sloserve.wire import errors
from sloserve.wire.rate_limits import Bucket, RateQuota, RequestUse, TenantRates

REQUESTS = RateQuota(requests_per_minute=6)
TOKENS = RateQuota(tokens_per_minute=600)


class Limits:
    def __init__(self, quota: RateQuota) -> None:
        self.clock, self.quota = ManualClock(1000.0), quota
        self.rates = TenantRates(self.clock)

    def ask(self, name: str = "a") -> RequestUse:
        return self.rates.admit(name, self.quota)

    def refused_s(self, name: str = "a") -> int:
        with pytest.raises(RateLimited) as caught:
            self.ask(name)
        return caught.value.retry_after_s

    def passes(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_s() + seconds)


def test_requests_per_minute() -> None:
    limits = Limits(REQUESTS)
    for _ in range(6):
        limits.ask()
    assert limits.refused_s() == 10, "one request flows in every 10 s"
    limits.ask("another tenant")
    limits.passes(9.5)
    assert limits.refused_s() == 1
    limits.passes(0.5)
    limits.ask()
    assert limits.refused_s() == 10
    limits.passes(3600)
    for _ in range(6):
        limits.ask()
    assert limits.refused_s() == 10, "an idle hour is worth no more than a minute"
    assert limits.rates.used()["a"].requests == 13, "what is refused here does not count"


def test_tokens_per_minute_of_prompts_and_outputs_as_they_come() -> None:
    limits = Limits(TOKENS)
    use = limits.ask()
    use.prompt(100)
    for _ in range(499):
        use.output(1)
    limits.ask().ended()
    use.output(1)
    assert limits.refused_s() == 1
    use.output(300)
    assert limits.refused_s() == 30, "10 tokens flow in each second"
    use.ended()
    limits.passes(29.0)
    assert limits.refused_s() == 1
    limits.passes(1.1)
    limits.ask()
    used = limits.rates.used()["a"]
    assert (used.requests, used.prompt_tokens, used.output_tokens) == (3, 100, 800)


def test_an_estimate_holds_tokens_and_makes_no_debt() -> None:
    limits = Limits(TOKENS)
    use = limits.ask()
    use.estimate(10_000_000)  # by the bytes of a picture
    assert limits.refused_s() == 1
    use.prompt(50)
    limits.ask()
    assert limits.rates.used()["a"].prompt_tokens == 50
    refused = limits.ask()
    refused.estimate(400)
    refused.ended()
    limits.ask().output(549)
    limits.ask()


@pytest.mark.parametrize("known", [True, False])
def test_what_is_known_at_the_end_stands_in_place_of_what_was_counted(known: bool) -> None:
    limits = Limits(TOKENS)
    use = limits.ask()
    use.estimate(500)
    use.totals(500, 400)
    use.totals(200, 100) if known else use.ended()
    assert [header[1] for header in use.headers()] == (["600", "300", "30s"] if known else ["600", "0", "90s"])


def test_a_debt_is_bounded_by_an_hours_worth() -> None:
    limits = Limits(TOKENS)
    limits.ask().output(10**12)
    assert limits.refused_s() == 3600


def test_a_changed_file_changes_the_limits_of_what_is_left() -> None:
    limits = Limits(RateQuota(requests_per_minute=10))
    for _ in range(4):
        limits.ask()
    limits.quota = RateQuota(requests_per_minute=2)
    limits.ask(), limits.ask()
    assert limits.refused_s() == 30
    limits.quota = RateQuota()
    for _ in range(100):
        assert limits.ask().headers() == []


def test_a_refusal_says_how_much_of_what_is_used_and_when_to_come_again() -> None:
    limits = Limits(RateQuota(requests_per_minute=60, tokens_per_minute=600))
    limits.ask().output(720)
    with pytest.raises(RateLimited) as caught:
        limits.ask()
    assert str(caught.value) == (
        "720 of 600 tokens per minute are used (tokens_per_minute of your key's tenant); retry in 12 s"
    )
    assert errors.status(caught.value) == 429
    assert errors.headers(caught.value) == [
        ("retry-after", "12"),
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-limit-tokens", "600"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "72s"),
    ]


def test_what_other_processes_use_is_charged_when_it_is_learned() -> None:
    limits = Limits(RateQuota(requests_per_minute=60, tokens_per_minute=600))
    limits.rates.others_used("new", limits.quota, 60.0, 0.0)
    assert limits.refused_s("new") == 1, "also of a tenant that has not been here"
    limits.rates.others_used("a", limits.quota, 0.0, 0.0)
    for _ in range(30):
        limits.passes(1.0)
        limits.rates.others_used("a", limits.quota, 1.0, 10.0)  # just what flows in
    assert dict(limits.ask().headers())["x-ratelimit-remaining-tokens"] == "600"
    limits.rates.others_used("a", limits.quota, 0.0, 700.0)
    assert limits.refused_s() == 10
    limits.rates.others_used("a", limits.quota, 0.0, -200.0)
    limits.ask()
    assert limits.rates.used()["a"].output_tokens == 0, "it is the use of others"


amounts = st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 500.0)), max_size=60)


@given(per_minute=st.integers(1, 1000), steps=amounts)
def test_no_interval_admits_more_than_its_bound(per_minute: int, steps: list[tuple[float, float]]) -> None:
    """Amounts that a bucket lets in, as far as it holds them: a full bucket and what flows in, in every interval."""
    bucket, now_s = Bucket(per_minute, float(per_minute), 0.0), 0.0
    taken = []
    for wait_s, amount in steps:
        now_s += wait_s
        taken.append((now_s, bucket.charge(amount, now_s, least=0.0)))
        assert 0.0 <= bucket.level <= per_minute
    for i, (first_s, _) in enumerate(taken):
        total = 0.0
        for at_s, amount in taken[i:]:
            total += amount
            assert total <= per_minute * (1.0 + (at_s - first_s) / 60.0) + 1e-6
