"""Limits of a tenant's requests and tokens per minute, and how much of them each request uses.

Each limit is a token bucket, which holds what a minute allows and fills at that rate. It lets a whole minute's worth
pass at once, and over any T seconds at most ``limit * (1 + T / 60)``.

A request passes if the bucket of requests holds one and the bucket of tokens is not empty. Its tokens count as they
become known: an estimate of the prompt, the length of the prompt, the output as it comes. The bucket of tokens may so
go below zero, by at most an hour's worth, and further requests wait until it has filled again. An estimate alone never
takes it below zero. A request that is cancelled, or refused later, has used what was counted until then.

A bucket belongs to one process. What other processes use is charged when this one learns of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.clock import Clock
from sloserve.core.errors import RateLimited
from sloserve.core.files.model import Allowed

_MINUTE_S: Final = 60.0
_DEBT_MINUTES: Final = 60.0
"""Most minutes that an empty bucket may need until it holds something again."""

_PerMinute = Annotated[
    Annotated[int, Field(strict=True, ge=1, le=2**53)] | None, Allowed("a whole number >= 1, or null for no limit")
]


class RateQuota(BaseModel):
    """Limits per minute of one tenant; ``None`` for no limit.

    Args:
        requests_per_minute: The most requests per minute.
        tokens_per_minute: The most tokens per minute, of prompts and outputs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: _PerMinute = None
    tokens_per_minute: _PerMinute = None


@dataclass(slots=True)
class Bucket:
    """A token bucket. Times are seconds of one monotonic clock.

    Args:
        per_minute: What it holds when it is full, and what flows in per minute.
        level: What it holds; below zero for a debt.
        seen_s: Time for which ``level`` is right.
    """

    per_minute: int
    level: float
    seen_s: float

    def fill(self, now_s: float) -> None:
        """Let in what has flowed in until now."""
        self.charge(0.0, now_s)

    def charge(self, amount: float, now_s: float, *, least: float | None = None, late: bool = False) -> float:
        """Take an amount, or give it back if it is below zero; return how much was taken.

        Args:
            amount: The amount.
            now_s: Present time.
            least: Level below which nothing is taken; ``None`` for the largest debt.
            late: Whether the amount was used at some time since the last call, so that what has flowed in since then
                counts before it, also beyond a full bucket.
        """
        level = self.level + max(now_s - self.seen_s, 0.0) * self.per_minute / _MINUTE_S
        level = level if late else min(level, float(self.per_minute))
        self.seen_s = max(now_s, self.seen_s)
        floor = -_DEBT_MINUTES * self.per_minute if least is None else least
        taken = min(amount, max(level - floor, 0.0))
        self.level = min(level - taken, float(self.per_minute))
        return taken

    def wait_s(self, needed: float) -> int:
        """Return the whole seconds until the level has risen to ``needed``, at least 1."""
        return max(math.ceil((needed - self.level) * _MINUTE_S / self.per_minute), 1)


@dataclass(slots=True)
class TenantUse:
    """What the requests of one tenant have used since the start of this process.

    Args:
        requests: Number of requests.
        prompt_tokens: Tokens of their prompts.
        output_tokens: Tokens of their outputs.
        promises_kept: Number of promises that were kept.
        promises_broken: Number of promises that were broken.
        promises_withdrawn: Number of promises to clients that left before the end.
    """

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    promises_kept: int = 0
    promises_broken: int = 0
    promises_withdrawn: int = 0


@dataclass(slots=True)
class _Tenant:
    requests: Bucket | None = None
    tokens: Bucket | None = None
    use: TenantUse = field(default_factory=TenantUse)

    def limit(self, quota: RateQuota, now_s: float) -> None:
        self.requests = _limited(self.requests, quota.requests_per_minute, now_s)
        self.tokens = _limited(self.tokens, quota.tokens_per_minute, now_s)


def _limited(bucket: Bucket | None, per_minute: int | None, now_s: float) -> Bucket | None:
    """Return the bucket with what has flowed in until now, and with a limit that the file of keys may have changed."""
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, float(per_minute), now_s)
    bucket.fill(now_s)
    if bucket.per_minute != per_minute:
        bucket.per_minute = per_minute
        bucket.level = min(bucket.level, float(per_minute))
    return bucket


class TenantRates:
    """Limits per minute and use by tenant. The names that keys stand for bound the number of tenants."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}

    def admit(self, name: str, quota: RateQuota) -> "RequestUse":
        """Count a request of a tenant, and return what it uses. Raises: RateLimited; then nothing was counted."""
        tenant = self._limited(name, quota)
        requests, tokens = tenant.requests, tenant.tokens
        waits = []
        if requests is not None and requests.level < 1.0:
            waits.append((requests.wait_s(1.0), "requests", requests))
        if tokens is not None and tokens.level <= 0.0:
            waits.append((tokens.wait_s(0.0), "tokens", tokens))
        if waits:
            wait_s, what, bucket = max(waits, key=lambda one: one[0])
            used = math.ceil(bucket.per_minute - bucket.level)
            text = f"{used} of {bucket.per_minute} {what} per minute are used ({what}_per_minute of your key's tenant)"
            raise RateLimited(f"{text}; retry in {wait_s} s", wait_s, tuple(_headers(tenant)))
        tenant.use.requests += 1
        if requests is not None:
            requests.charge(1.0, self._clock.monotonic_s())
        return RequestUse(self._clock, tenant)

    def others_used(self, name: str, quota: RateQuota, requests: float, tokens: float) -> None:
        """Charge what other processes have used of a tenant's limits since the last call.

        To be called regularly for each tenant, whether anything was used or not: what was used long ago is to be set
        against what has flowed in since then.

        Args:
            name: Name of the tenant.
            quota: Limits of the tenant.
            requests: Number of requests.
            tokens: Tokens of prompts and outputs; below zero if more was given back.
        """
        tenant, now_s = self._tenants.get(name) or self._limited(name, quota), self._clock.monotonic_s()
        for bucket, amount in ((tenant.requests, requests), (tenant.tokens, tokens)):
            if bucket is not None:
                bucket.charge(amount, now_s, late=True)
        tenant.limit(quota, now_s)

    def use_of(self, name: str) -> TenantUse:
        """Return what the requests of one tenant have used."""
        tenant = self._tenants.get(name)
        return TenantUse() if tenant is None else tenant.use

    def used(self) -> Mapping[str, TenantUse]:
        """Return what requests have used, by tenant."""
        return {name: tenant.use for name, tenant in self._tenants.items()}

    def _limited(self, name: str, quota: RateQuota) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant()
        tenant.limit(quota, self._clock.monotonic_s())
        return tenant


class RequestUse:
    """The tokens that one request uses, as they become known."""

    __slots__ = ("_clock", "_estimated", "_output", "_prompt", "_taken", "_tenant")

    def __init__(self, clock: Clock, tenant: _Tenant) -> None:
        self._clock, self._tenant = clock, tenant
        self._prompt, self._output = 0, 0
        self._estimated = False
        self._taken = 0.0

    def estimate(self, prompt_tokens: int) -> None:
        """Count an estimate of the prompt until its length is known, as far as the tenant's limit still allows it."""
        self._estimated = True
        if (bucket := self._tenant.tokens) is not None:
            self._taken += bucket.charge(float(prompt_tokens), self._clock.monotonic_s(), least=0.0)

    def prompt(self, tokens: int | None) -> None:
        """Count the tokens of a prompt of the request, which may have several; ``None`` if they are not known."""
        if tokens is not None:
            self.totals(self._prompt + tokens, self._output)

    def output(self, tokens: int) -> None:
        """Count further tokens of the output."""
        if tokens:
            self.totals(self._prompt, self._output + tokens)

    def totals(self, prompt_tokens: int, output_tokens: int) -> None:
        """Set all tokens that the request has used so far, in place of what was counted before."""
        use = self._tenant.use
        use.prompt_tokens += prompt_tokens - self._prompt
        use.output_tokens += output_tokens - self._output
        self._prompt, self._output, self._estimated = prompt_tokens, output_tokens, False
        self._charge()

    def promise_ended(self, outcome: str) -> None:
        """Count the promise of the request.

        Args:
            outcome: Outcome of the promise, one of :data:`~sloserve.core.promises.PROMISES_KEPT`.
        """
        use = self._tenant.use
        use.promises_kept += outcome == "kept"
        use.promises_broken += outcome == "broken"
        use.promises_withdrawn += outcome == "withdrawn"

    def ended(self) -> None:
        """Give an estimate back of which nothing became known: the request was refused, or reads no prompt."""
        if self._estimated:
            self._estimated = False
            self._charge()

    def headers(self) -> list[tuple[str, str]]:
        """Return headers with the limits of the tenant and what is left of them, in OpenAI's names."""
        return list(_headers(self._tenant))

    def _charge(self) -> None:
        bucket, used = self._tenant.tokens, float(self._prompt + self._output)
        if bucket is None:
            return
        self._taken += bucket.charge(used - self._taken, self._clock.monotonic_s())


def _headers(tenant: _Tenant) -> list[tuple[str, str]]:
    found = []
    for what, bucket in (("requests", tenant.requests), ("tokens", tenant.tokens)):
        if bucket is not None:
            full_s = math.ceil((bucket.per_minute - bucket.level) * _MINUTE_S / bucket.per_minute)
            found += [
                (f"x-ratelimit-limit-{what}", str(bucket.per_minute)),
                (f"x-ratelimit-remaining-{what}", str(max(math.floor(bucket.level), 0))),
                (f"x-ratelimit-reset-{what}", f"{full_s}s"),
            ]
    return found
