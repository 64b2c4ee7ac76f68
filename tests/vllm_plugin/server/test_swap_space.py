"""``--swap-space-gib``: which connectors vLLM gets for it, and what is refused before anything is loaded."""

import argparse
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve import cli
from sloserve.core.errors import ConfigError
from sloserve.vllm_plugin.server import swap_space

GIB_KB = 2**20


def flags(connector: dict[str, Any] | None = None, **given: object) -> argparse.Namespace:
    """What vLLM's parser makes of no flags, but for those given."""
    stock = {
        "pipeline_parallel_size": 1, "tensor_parallel_size": 1, "data_parallel_size": 1, "nnodes": 1,
        "data_parallel_size_local": None, "data_parallel_rank": None, "kv_offloading_size": None,
        "kv_transfer_config": None if connector is None else SimpleNamespace(**connector),
    }  # fmt: skip
    return argparse.Namespace(**{**stock, **given})


def of(name: str, role: str = "kv_both", **extra: object) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": role, "kv_connector_extra_config": extra}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (flags(pipeline_parallel_size=2), "leave out --pipeline-parallel-size 2 or --swap-space-gib"),
        (flags(kv_offloading_size=4.0), "to have both, name vLLM's with --kv-transfer-config"),
        (
            flags(of("NixlConnector", "kv_consumer")),
            "NixlConnector with kv_role kv_consumer makes this server one half",
        ),
        (flags(of("MultiConnector", connectors=[of("A"), of("B", "kv_producer")])), "B with kv_role kv_producer"),
        (flags(of("SwapConnector")), "--kv-transfer-config names SwapConnector, and --swap-space-gib would add it"),
        (flags(of("MultiConnector", connectors=[of("SwapConnector")])), "give one of the two"),
    ],
)
def test_what_swapping_does_not_work_beside_is_refused(args: argparse.Namespace, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        swap_space.check_flags(args)


@pytest.mark.parametrize("args", [flags(), flags(of("OffloadingConnector")), flags({"kv_connector": None})])
def test_what_it_works_beside_is_not(args: argparse.Namespace) -> None:
    swap_space.check_flags(args)


@pytest.mark.parametrize(
    ("gib", "message"),
    [("-1", "is not a number of GiB >= 0"), ("nan", "is not a number"), ("inf", "is not a number"), ("1e9", "free")],
)
def test_a_size_that_cannot_be_is_refused_before_vllm_is_imported(
    gib: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(sys, "argv", ["sloserve", "serve", "m", "--port", "0", f"--swap-space-gib={gib}"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert message in capsys.readouterr().err


def test_a_rule_for_swapping_needs_swap_space() -> None:
    with pytest.raises(
        ConfigError, match="^--swapping always has no effect without swap space; add --swap-space-gib N"
    ):
        swap_space.check_rule("always", 0.0, ["m"])
    swap_space.check_rule("always", 1.0, ["m"])
    swap_space.check_rule("always", 0.0, ["m", "--kv-transfer-config", '{"kv_connector": "SwapConnector"}'])
    swap_space.check_rule(None, 0.0, ["m"])


def test_a_pool_is_held_against_what_the_host_has(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {10 * GIB_KB} kB\n")
    swap_space.check_size(8.0, tmp_path)
    with pytest.raises(ConfigError, match=r"^--swap-space-gib 9: 10.0 GiB are free .* give at most 8.0 GiB"):
        swap_space.check_size(9.0, tmp_path)


@pytest.mark.parametrize(
    ("given", "engines"),
    [
        ({}, 1), ({"data_parallel_size": 4}, 4), ({"data_parallel_size": 8, "data_parallel_size_local": 2}, 2),
        ({"data_parallel_size": 4, "data_parallel_rank": 1}, 1),
        ({"data_parallel_size": 4, "data_parallel_external_lb": True}, 1),
    ],
)  # fmt: skip
def test_engines_that_share_a_host_share_the_pool(given: dict[str, object], engines: int) -> None:
    assert swap_space.engines_of_host(flags(**given)) == engines


@pytest.mark.slow
def test_ours_stands_before_what_the_user_asks_for() -> None:
    from vllm.config import KVTransferConfig

    args = flags(data_parallel_size=2)
    swap_space.configure(args, 4.0)
    alone = args.kv_transfer_config
    assert (alone.kv_connector, alone.kv_role, alone.kv_load_failure_policy) == (
        "SwapConnector",
        "kv_both",
        "recompute",
    )
    assert alone.kv_connector_module_path == "sloserve.vllm_plugin.swap.connector"
    assert alone.kv_connector_extra_config == {"swap_space_gib": 4.0, "engines_of_host": 2}

    tier = of("OffloadingConnector", cpu_bytes_to_use=5)
    for theirs in (tier, of("MultiConnector", connectors=[tier])):
        args = flags(kv_transfer_config=KVTransferConfig(**theirs, engine_id="e"))
        swap_space.configure(args, 4.0)
        both = args.kv_transfer_config
        assert (both.kv_connector, both.engine_id, both.kv_load_failure_policy) == ("MultiConnector", "e", "recompute")
        first, second = both.kv_connector_extra_config["connectors"]
        assert first["kv_connector"] == "SwapConnector" and tier.items() <= second.items()
        KVTransferConfig(**second, engine_id="e")  # as MultiConnector makes it of a child
