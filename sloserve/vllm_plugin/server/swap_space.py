"""Turn ``--swap-space-gib`` into vLLM's KV connectors, or into a sentence that says why not.

What the flags show is refused here, what only the model shows in :mod:`sloserve.vllm_plugin.swap.refusals`.
"""

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sloserve.core.errors import ConfigError
from sloserve.engine.swap.host.memory_limits import GIB, check_room, memlock_warning
from sloserve.engine.swap.host.regions import ENGINES_KEY, SPACE_KEY

FLAG: Final = "--swap-space-gib"
CONNECTOR: Final = "SwapConnector"
MODULE: Final = "sloserve.vllm_plugin.swap.connector"
_MULTI: Final = "MultiConnector"
_CONFIG_FLAG: Final = "--kv-transfer-config"


def check_size(gib: float, root: Path = Path("/")) -> None:
    """Check the size of the swap space, without vLLM.

    Args:
        gib: Size in GiB.
        root: Folder that holds ``proc`` and ``sys``.

    Raises: ConfigError for a size that is not valid, or that this host cannot hold.
    """
    if not 0.0 <= gib < math.inf:
        raise ConfigError(f"{FLAG} {gib:g}: is not a number of GiB >= 0; 0 turns swapping off")
    check_room(round(gib * GIB), f"{FLAG} {gib:g}", root=root)


def check_rule(swapping: str | None, gib: float, vllm_args: Sequence[str]) -> None:
    """Raise ConfigError for ``--swapping`` without a swap space, by our flag or a configuration of vLLM's."""
    if swapping is not None and not gib and CONNECTOR not in " ".join(vllm_args):
        raise ConfigError(f"--swapping {swapping} has no effect without swap space; add {FLAG} N")


def configure(args: argparse.Namespace, gib: float) -> None:
    """Have vLLM load our connector with a pool on each host, before the connectors that the user asks for.

    Args:
        args: Arguments of ``vllm serve``, parsed.
        gib: Size of the pool in GiB.

    Raises: ConfigError for anything beside which swapping does not work.
    """
    check_flags(args)
    from vllm.config import KVTransferConfig

    ours = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": MODULE,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {SPACE_KEY: gib, ENGINES_KEY: engines_of_host(args)},
    }
    theirs = args.kv_transfer_config
    same = {} if theirs is None else {"engine_id": theirs.engine_id}
    if theirs is not None and theirs.kv_connector is not None:
        others = _children(theirs)
        if others is None:
            others = [{k: v for k, v in dataclasses.asdict(theirs).items() if k != "engine_id"}]
        # vLLM loads from the first that has something: ours is asked about preempted requests before a prefix cache.
        several = {"connectors": [ours, *others]}
        ours = {"kv_connector": _MULTI, "kv_role": "kv_both", "kv_connector_extra_config": several}
    # A load that failed is computed again; under vLLM's default the request would end in an error.
    args.kv_transfer_config = KVTransferConfig(**ours, **same, kv_load_failure_policy="recompute")


def check_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for flags beside which a preempted request cannot be swapped."""
    if args.pipeline_parallel_size > 1:
        raise ConfigError(
            f"{FLAG} does not work with pipeline parallelism, under which plans are off and no step is the whole "
            f"model's; leave out --pipeline-parallel-size {args.pipeline_parallel_size} or {FLAG}"
        )
    if getattr(args, "kv_offloading_size", None) is not None:
        named = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {...}}'
        raise ConfigError(
            f"{FLAG} and --kv-offloading-size: the second has vLLM replace every other connector; "
            f"to have both, name vLLM's with {_CONFIG_FLAG} '{named}'"
        )
    config = args.kv_transfer_config
    if config is None or config.kv_connector is None:
        return
    children = _children(config)
    for child in [{"kv_connector": config.kv_connector, "kv_role": config.kv_role}, *(children or [])]:
        name, role = child.get("kv_connector"), child.get("kv_role")
        if name == CONNECTOR:
            raise ConfigError(f"{_CONFIG_FLAG} names {CONNECTOR}, and {FLAG} would add it; give one of the two")
        if role in ("kv_producer", "kv_consumer"):
            raise ConfigError(
                f"{_CONFIG_FLAG}: {name} with kv_role {role} makes this server one half of a prefill and decode pair: "
                f"its KV belongs to another server too and cannot be swapped here; leave out {FLAG}"
            )


def pinning_warning(args: argparse.Namespace, gib: float) -> str | None:
    """Return a warning, before a model is loaded, if this platform may keep the pool from being pinned."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return None
    ranks = max(args.tensor_parallel_size * engines_of_host(args) // max(args.nnodes, 1), 1)
    return memlock_warning(round(gib * GIB) // ranks)


def engines_of_host(args: argparse.Namespace) -> int:
    """Return the number of data-parallel engines that this server starts on a host, which share the pool.

    vLLM tells no engine about the others.
    """
    if args.data_parallel_rank is not None or getattr(args, "data_parallel_external_lb", False):
        return 1
    return args.data_parallel_size_local or args.data_parallel_size or 1


def _children(config: Any) -> list[Mapping[str, Any]] | None:
    """Return the connectors of a MultiConnector; ``None`` for any other."""
    return list(config.kv_connector_extra_config.get("connectors", [])) if config.kv_connector == _MULTI else None
