"""What is read of vLLM's flags before vLLM is loaded."""

import sys
from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.vllm_plugin.server.early import long_flag, read_flags


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m"], {}),
        (["m", "--additional-config", '{"a": {"b": 1}}'], {"a": {"b": 1}}),
        (["m", '--additional_config={"a": 1}', "--additional-config.sloserve.policy", "edf"],
         {"a": 1, "sloserve": {"policy": "edf"}}),
        (["m", "--additional-config.sloserve.plan_share=0.5"], {"sloserve": {"plan_share": 0.5}}),
    ],
)  # fmt: skip
def test_vllms_additional_config(arguments: list[str], expected: dict[str, Any]) -> None:
    assert read_flags(arguments).additional_config == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [("{", "is not JSON"), ("[1]", "is not a JSON object"), ('"edf"', "is not a JSON object")],
)
def test_an_additional_config_that_is_no_object_is_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--additional-config: .* {message}"):
        read_flags(["m", "--additional-config", value])


def test_aliases_and_underscores_are_read_as_vllm_reads_them() -> None:
    flags = read_flags(["m", "-pp", "2", "--data_parallel_size=3", "--scheduling-policy", "priority", "--headless"])
    assert (flags.pipeline_parallel_size, flags.data_parallel_size, flags.headless) == (2, 3, True)
    assert flags.scheduling_policy == "priority" and flags.scheduler_cls is None


@pytest.mark.parametrize(
    ("arguments", "is_whole"),
    [
        (["m", "--port", "1", "--no-enable-prefix-caching"], True),
        (["m", "--hf-overrides.a", "1"], True),
        (["m", "--config", "server.yaml"], False),
        (["m", "--ssl-cert", "a.pem"], False),
    ],
)
def test_what_may_be_set_elsewhere_is_left_to_vllm(arguments: list[str], is_whole: bool) -> None:
    assert read_flags(arguments).is_whole is is_whole


def test_connectors_are_read_where_they_are_json() -> None:
    assert read_flags(["m", "--kv-transfer-config", '{"kv_connector": "X"}']).kv_transfer_config.kv_connector == "X"
    assert read_flags(["m", "--kv-transfer-config", "nonsense"]).kv_transfer_config is None
    assert read_flags(["m"]).kv_transfer_config is None


@pytest.mark.parametrize(
    ("argument", "flag"),
    [("--a_b=1", "--a-b"), ("--a.b_c", "--a"), ("--", None), ("-tp", None), ("m", None), ("--port", "--port")],
)
def test_the_flag_of_an_argument(argument: str, flag: str | None) -> None:
    assert long_flag(argument) == flag


def test_vllm_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    read_flags(["m", "-O3", "--json-arg.key", "-1"])


@pytest.mark.parametrize("empty", ["", "None"])
def test_a_flag_without_a_value_is_read_as_vllm_reads_it(empty: str) -> None:
    given = [
        one for flag in ("--additional-config", "--scheduler-cls", "--ssl-certfile", "--host") for one in (flag, empty)
    ]
    found = read_flags(["m", *given])
    assert (found.additional_config, found.scheduler_cls, found.ssl_certfile, found.host) == ({}, None, None, None)
    assert read_flags(["m", "--additional-config", "null"]).additional_config == {}


def test_what_vllm_alone_can_read_is_left_to_it() -> None:
    assert read_flags(["m", "--additional-config.a+", "1", "--additional-config.b", "2"]).additional_config == {"b": 2}
    assert long_flag("--port abc") is None
    with pytest.raises(ConfigError, match="ambiguous"):
        read_flags(["m", "-d", "2"])
