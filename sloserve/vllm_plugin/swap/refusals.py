"""Refuse the models and configurations with which KV cannot be swapped, each with its reason, at the start."""

from collections.abc import Mapping
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.engine.swap.host.regions import space_gib_of
from sloserve.vllm_plugin.kv_groups import swapped_groups


def check_supported(vllm_config: Any, kv_cache_config: Any) -> None:
    """Check the whole configuration. Raises: ConfigError naming what KV cannot be swapped with, and what to do."""
    reason = refusal(vllm_config, kv_cache_config)
    if reason is not None:
        raise _unsupported(reason)


def _unsupported(reason: str) -> ConfigError:
    return ConfigError(f"KV cannot be swapped: {reason}. Leave SwapConnector (--swap-space-gib) out")


def refusal(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """Return why KV cannot be swapped; ``None`` where it can."""
    by_flags = refused_by_flags(vllm_config, vllm_config.kv_transfer_config.kv_role)
    return by_flags or _refused_by_cache(vllm_config, kv_cache_config)


def check_configured(vllm_config: Any) -> None:
    """Check SwapConnector's part of a configuration, if it has one, as far as that can be done without a KV cache.

    Raises: ConfigError as the connector does once the model has been loaded.
    """
    config = vllm_config.kv_transfer_config
    if config is None:
        return
    fields = ("kv_connector", "kv_role", "kv_connector_extra_config")
    children: list[Mapping[str, Any]] = [{name: getattr(config, name) for name in fields}]
    if config.kv_connector == "MultiConnector":
        children = list(config.kv_connector_extra_config.get("connectors", []))
    ours = next((child for child in children if child.get("kv_connector") == "SwapConnector"), None)
    if ours is None:
        return
    if config.kv_connector == "MultiConnector":
        check_place(children)
    reason = refused_by_flags(vllm_config, ours.get("kv_role"))
    if reason is not None:
        raise _unsupported(reason)
    space_gib_of(ours.get("kv_connector_extra_config") or {})


def refused_by_flags(vllm_config: Any, kv_role: str | None) -> str | None:
    """Return why KV cannot be swapped with these flags and this model; ``None`` where nothing forbids it yet.

    Args:
        vllm_config: vLLM's whole configuration.
        kv_role: Role of SwapConnector in it.
    """
    parallel = vllm_config.parallel_config
    if kv_role != "kv_both":
        return f"kv_role {kv_role} makes this engine one half of a prefill and decode pair; SwapConnector needs kv_both"
    if parallel.pipeline_parallel_size > 1:
        return f"pipeline_parallel_size {parallel.pipeline_parallel_size}: no step is the whole model's"
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return f"{name} {getattr(parallel, name)}: a rank's blocks hold only some of their tokens"
    if vllm_config.model_config.is_encoder_decoder:
        return "encoder-decoder models, whose cross-attention reads KV that no token computes again"
    model, outputs = vllm_config.model_config, getattr(vllm_config, "aux_output_config", None)  # since 0.31
    if getattr(model, "enable_return_routed_experts", False) or getattr(outputs, "enabled", False):
        return (
            "routed experts that are returned (--enable-return-routed-experts): vLLM notes them as it computes tokens, "
            "and computes none whose KV comes back"
        )
    return None


def _refused_by_cache(vllm_config: Any, kv_cache_config: Any) -> str | None:
    try:
        swapped_groups(kv_cache_config.kv_cache_groups)
    except LookupError as error:
        return f"{error.args[0]}, a kind of KV cache of which it was not shown what a resumed request needs"
    if any(getattr(place, "host_resident", False) for place in kv_cache_config.kv_cache_tensors):
        return "a KV cache that lies in host memory itself"
    if vllm_config.use_v2_model_runner and kv_cache_config.needs_kv_cache_zeroing:
        return (
            "a KV cache in which new blocks are zeroed (of Mamba layers, or of several precisions), which the V2 model "
            "runner does before a connector may read them; VLLM_USE_V2_MODEL_RUNNER=0 has vLLM use the other one"
        )
    return None


def check_place(children: list[Mapping[str, Any]]) -> None:
    """Check the place of our connector in a MultiConnector.

    Args:
        children: Settings of the connectors in the MultiConnector, ours among them.

    Raises: ConfigError unless ours is the first, and the only one; and for one that hands KV to another engine.
    """
    names = [str(child.get("kv_connector")) for child in children]
    if names.count("SwapConnector") > 1 or names[0] != "SwapConnector":
        raise ConfigError(
            f"MultiConnector loads from the first connector that has something, and these are {', '.join(names)}; "
            "name SwapConnector once, and first"
        )
    for child in children:
        if child.get("kv_role") != "kv_both":
            raise ConfigError(
                f"{child.get('kv_connector')} has kv_role {child.get('kv_role')}, which makes this engine one half of "
                "a prefill and decode pair; its KV cannot be swapped. Leave SwapConnector (--swap-space-gib) out"
            )
