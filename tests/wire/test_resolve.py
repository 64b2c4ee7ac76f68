"""Which of several statements counts, what a tier and a tenant do, and that the engine reads the same SLO."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import InvalidRequest
from sloserve.core.promises import PromiseWish
from sloserve.core.slo import DEFAULT_CLASSES, SLO, ClassTable, SLOClass, Targets
from sloserve.wire.body import BodyFields
from sloserve.wire.headers import Field, HeaderFields
from sloserve.wire.resolve import MAX_REMEMBERED, MAX_REMEMBERED_CHARS, Resolved, Rules, resolve
from sloserve.wire.xargs import parse_slo

TIERS = {"priority": "priority", "auto": "interactive", "flex": "background"}
RULES = Rules(DEFAULT_CLASSES, TIERS)


def resolved(
    xargs: dict[str, Any] | None = None,
    headers: dict[str, object] | None = None,
    body: dict[str, object] | None = None,
    tier: str | None = None,
    rules: Rules = RULES,
    tenant: str | None = None,
) -> Resolved:
    def fields(stated: dict[str, object] | None, mark: str) -> dict[str, Field]:
        return {key: Field(f"{mark}{key}", value) for key, value in (stated or {}).items()}

    return resolve(rules, xargs, HeaderFields(fields(headers, "x-"), tenant), BodyFields(fields(body, "slo."), tier))


def test_nothing_stated_leaves_the_request_alone() -> None:
    assert resolved() == Resolved(DEFAULT_CLASSES.slo(None, Targets()), None)
    assert resolved({"other": 1}).xargs == {"other": 1}


def test_header_over_body_over_tier_over_default() -> None:
    everything = {"xargs": {"slo_class": "batch"}, "body": {"slo_class": "background"}, "tier": "priority"}
    assert resolved(**everything, headers={"slo_class": "interactive"}).slo.slo_class.name == "interactive"
    assert resolved(**everything).slo.slo_class.name == "background"
    assert resolved({"slo_class": "batch"}, tier="priority").slo.slo_class.name == "batch"
    assert resolved(tier="priority").slo.slo_class.name == "priority"
    assert resolved().slo.slo_class.name == "interactive"


def test_targets_merge_key_by_key_and_the_callers_xargs_stay_as_they_are() -> None:
    xargs = {"slo_ttft_ms": 100, "slo_e2e_ms": 9000, "other": "kept"}
    found = resolved(xargs, headers={"slo_ttft_ms": "250"}, body={"slo_tds": 5})
    assert found.slo.targets == Targets(ttft_s=0.25, e2e_s=9.0, tds=5.0)
    assert found.xargs == {"slo_ttft_ms": "250", "slo_e2e_ms": 9000, "slo_tds": 5, "other": "kept"}
    assert xargs == {"slo_ttft_ms": 100, "slo_e2e_ms": 9000, "other": "kept"}


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"headers": {"slo_ttft_ms": "-1"}}, "x-slo_ttft_ms: '-1' is not a number of milliseconds"),
        ({"headers": {"slo_ttft_ms": "1_000"}}, "x-slo_ttft_ms: '1_000' is not"),
        ({"headers": {"slo_ttft_ms": "\u0661"}}, "x-slo_ttft_ms: '\u0661' is not"),
        ({"headers": {"slo_output_tokens": "1" * 30}}, "x-slo_output_tokens: '" + "1" * 30 + "' is not"),
        ({"body": {"slo_tds": "fast"}}, "slo.slo_tds: 'fast' is not a number of tokens per second"),
        ({"xargs": {"slo_class": "gold"}}, "vllm_xargs.slo_class: 'gold' is not one of priority, interactive"),
        ({"xargs": {"slo_tfft_ms": 1}}, "vllm_xargs.slo_tfft_ms: 1 is not a known SLO key"),
        ({"tier": "turbo"}, "service_tier: 'turbo' is not one of priority, auto, flex"),
    ],
)
def test_an_error_names_the_field_as_the_client_wrote_it(stated: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        resolved(**stated)


def test_unknown_class_or_tier_may_be_the_default() -> None:
    lenient = Rules(DEFAULT_CLASSES, TIERS, unknown_to_default=True)
    found = resolved({"slo_class": "gold", "slo_ttft_ms": 5}, rules=lenient)
    assert (found.slo.slo_class.name, found.xargs) == ("interactive", {"slo_ttft_ms": 5})
    assert resolved(tier="turbo", rules=lenient).slo.slo_class.name == "interactive"
    with pytest.raises(InvalidRequest, match="slo_ttft_ms: 'x'"):
        resolved({"slo_ttft_ms": "x"}, rules=lenient)


@pytest.mark.parametrize(
    ("tenant", "asks", "gets"),
    [
        ("acme", "priority", "batch"),
        ("acme", None, "batch"),
        ("acme", "background", "background"),
        ("other", "priority", "interactive"),
        (None, "priority", "interactive"),
        ("gold", "priority", "priority"),
    ],
)
def test_a_tenant_only_ever_lowers_a_class(tenant: str | None, asks: str | None, gets: str) -> None:
    rules = Rules(DEFAULT_CLASSES, TIERS, tenants={"acme": "batch", "gold": "priority"}, tenant_default="interactive")
    xargs = {} if asks is None else {"slo_class": asks}
    assert resolved(xargs, rules=rules, tenant=tenant).slo.slo_class.name == gets


def test_a_tenant_that_is_held_to_a_class_gets_no_promise_above_its_own() -> None:
    """Else it would come before the others of its class, or before more urgent ones."""
    promised = PromiseWish(0.9, falls_back=True)
    classes = ClassTable(
        {
            "premium": SLOClass("premium", 0, Targets(ttft_s=1.0), promise=PromiseWish(0.99)),
            "some": SLOClass("some", 1, Targets(ttft_s=1.0), promise=promised),
            "plain": SLOClass("plain", 2, Targets(ttft_s=1.0)),
        },
        "plain",
    )
    rules = Rules(classes, tenants={"acme": "plain", "gold": "some"})
    asks: dict[str, Any] = {"slo_promise": 0.99, "slo_promise_fallback": 1}
    assert resolved(asks, rules=rules, tenant="acme").slo.promise is None
    assert resolved({"slo_class": "premium"}, rules=rules, tenant="acme").slo.promise is None
    assert resolved({"slo_class": "some", **asks}, rules=rules, tenant="gold").slo.promise == promised
    assert resolved({"slo_class": "some", "slo_promise": 0}, rules=rules, tenant="gold").slo.promise is None
    assert resolved(asks, rules=rules, tenant="free").slo.promise == PromiseWish(0.99, falls_back=True)


KEYS = st.fixed_dictionaries(
    {},
    optional={
        "slo_ttft_ms": st.one_of(st.integers(-5, 10**9), st.text(max_size=5)),
        "slo_class": st.sampled_from([*DEFAULT_CLASSES.names, "gold"]),
        "slo_tds": st.floats(),
    },
)


@pytest.mark.slow
@given(KEYS, KEYS, KEYS, st.sampled_from([None, *TIERS]), st.sampled_from([None, "acme"]), st.booleans())
def test_the_engine_reads_the_slo_that_the_front_end_read(
    xargs: dict[str, Any],
    headers: dict[str, Any],
    body: dict[str, Any],
    tier: str | None,
    tenant: str | None,
    soft: bool,
) -> None:
    rules = Rules(DEFAULT_CLASSES, TIERS, unknown_to_default=soft, tenants={"acme": "batch"})
    try:
        found = resolved(xargs, headers, body, tier, rules, tenant)
    except InvalidRequest:
        return
    assert parse_slo(found.xargs, DEFAULT_CLASSES) == found.slo
    if tenant is not None:
        assert found.slo.slo_class.rank >= DEFAULT_CLASSES["batch"].rank


@pytest.mark.parametrize(("stated", "times"), [({"slo_class": "batch"}, 1), ({"slo_class": "priority"}, 2)])
def test_a_request_is_parsed_once_unless_its_tenant_is_held_to_less(
    monkeypatch: pytest.MonkeyPatch, stated: dict[str, Any], times: int
) -> None:
    parsed: list[dict[str, Any]] = []

    def parse(args: dict[str, Any], classes: ClassTable) -> SLO:
        parsed.append(args)
        return parse_slo(args, classes)

    monkeypatch.setattr("sloserve.wire.resolve.parse_slo", parse)
    found = resolved(stated, rules=Rules(DEFAULT_CLASSES, tenants={"acme": "batch"}), tenant="acme")
    assert (found.slo.slo_class.name, len(parsed)) == ("batch", times)


@pytest.mark.slow
def test_what_is_remembered_is_of_equal_values_of_one_type_and_bounded() -> None:
    rules = Rules(DEFAULT_CLASSES)
    whole, part = (resolved({"slo_ttft_ms": value, "other": 1}, rules=rules) for value in (1, 1.0))
    assert whole.xargs is not None and part.xargs is not None
    assert [type(found["slo_ttft_ms"]) for found in (whole.xargs, part.xargs)] == [int, float]
    with pytest.raises(InvalidRequest):
        resolved({"slo_ttft_ms": True}, rules=rules)
    whole.xargs["slo_ttft_ms"] = 2
    assert resolved({"slo_ttft_ms": 1}, rules=rules).xargs == {"slo_ttft_ms": 1}
    rules = Rules(DEFAULT_CLASSES)
    for ttft_ms in range(1, 2 * MAX_REMEMBERED):
        resolved({"slo_ttft_ms": ttft_ms}, rules=rules)
    assert rules.merge.cache_info().currsize == MAX_REMEMBERED  # type: ignore[attr-defined]
    misses = rules.merge.cache_info().misses  # type: ignore[attr-defined]
    assert resolved({"slo_ttft_ms": "0" * MAX_REMEMBERED_CHARS + "5"}, rules=rules).slo.targets.ttft_s == 0.005
    assert rules.merge.cache_info().misses == misses  # type: ignore[attr-defined]
