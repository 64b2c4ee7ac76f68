"""What of vLLM's scheduler this package uses stands in ``private_names``, which is checked at the start."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "sloserve" / "vllm_plugin"
_READERS = [*(PLUGIN / "engine").glob("*.py"), *(PLUGIN / "swap").glob("*.py"), *PLUGIN.glob("kv_*.py")]
FILES = sorted(_READERS)

OWNERS = {
    "SCHEDULER": ("scheduler", "_scheduler"),
    "REQUEST": ("request", "r"),
    "CONFIG": ("scheduler_config",),
    "KV_MANAGER": ("kv_cache_manager",),
    "POOL": ("block_pool",),
    "COORDINATOR": ("coordinator",),
    "BLOCK": ("block",),
    "GROUP": ("group",),
}
"""What vLLM's objects are called in the code, by the table that holds their names."""

TYPES = {
    "KVCacheSpec KVCacheGroupSpec": ("group",),
    "KVCacheSpec SlidingWindowSpec ChunkedLocalAttentionSpec MambaSpec": ("kv_cache_spec", "layer", "spec"),
    "KVCacheConfig": ("kv_cache_config", "_kv_cache_config"),
    "VllmConfig": ("vllm_config", "_vllm_config"),
    "ModelConfig": ("model_config",),
    "CacheConfig": ("cache_config",),
    "ParallelConfig": ("parallel", "parallel_config"),
    "KVTransferConfig": ("kv_transfer_config",),
    "LoRAConfig": ("lora_config",),
    "LoRARequest": ("lora_request",),
    "ObservabilityConfig": ("observability_config",),
    "SpeculativeConfig": ("speculative_config",),
    "SchedulerOutput ModelRunnerOutput": ("output", "_output"),
    "ModelRunnerOutput": ("results",),
    "CachedRequestData": ("cached", "scheduled_cached_reqs"),
    "NewRequestData": ("new",),
    "KVConnectorOutput": ("connector_output", "ended"),
    "EngineCoreOutput": ("core_output",),
    "EngineCoreOutputs": ("batch",),
    "EncoderCacheManager": ("encoder_cache_manager",),
    "MultiModalFeatureSpec": ("item",),
    "PlaceholderRange": ("mm_position", "place"),
    "PrefillStats": ("prefill_stats",),
    "SamplingParams": ("sampling_params",),
    "StructuredOutputRequest": ("pending",),
}
"""The same for objects that come and go, by their possible types."""

NOT_READ = {"scheduler_cls", "_replace"}
"""Of the configuration before there is a scheduler, and of our own groups."""


def tables() -> dict[str, set[str]]:
    """The names of each table, by what it begins with."""
    found: dict[str, set[str]] = {owner: set() for owner in OWNERS}
    for node in ast.parse((PLUGIN / "engine" / "private_names.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            owner = next((o for o in OWNERS if node.targets[0].id.startswith(o)), None)
            if owner is not None:
                found[owner] |= {c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant)}
    return found


def fields() -> dict[str, set[str]]:
    """The names of each type in the table of types."""
    (table,) = (
        node.value
        for node in ast.parse((PLUGIN / "engine" / "private_names.py").read_text()).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "FIELDS"
    )
    assert isinstance(table, ast.Dict)
    return {
        kind.id: set(ast.literal_eval(names))
        for kind, names in zip(table.keys, table.values, strict=True)
        if isinstance(kind, ast.Name)
    }


def read_of(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Owner, name and line of each attribute that is read of an object of vLLM's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", None)
            for owner, called in [*OWNERS.items(), *TYPES.items()]:
                if of in called:
                    yield owner, node.attr, node.lineno


def of_our_scheduler() -> set[str]:
    """What SLOScheduler has that vLLM's has not."""
    tree = ast.parse((PLUGIN / "engine" / "scheduler.py").read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    return own


@pytest.mark.slow
def test_each_private_name_is_in_the_table_that_the_start_checks() -> None:
    known, ours, of_type = tables(), of_our_scheduler(), fields()
    known |= {kinds: set().union(*(of_type[kind] for kind in kinds.split())) for kinds in TYPES}
    groups = "KVCacheSpec KVCacheGroupSpec"  # one of them is scheduled, the other configured; both are called a group
    known[groups] |= known["GROUP"]
    known["GROUP"] |= of_type["KVCacheGroupSpec"]
    unknown = [
        f"{path.relative_to(PLUGIN)}:{line}: {owner} {name}"
        for path in FILES
        for owner, name, line in read_of(ast.parse(path.read_text()))
        if name not in known[owner] | NOT_READ and not (owner == "SCHEDULER" and name in ours)
    ]
    assert unknown == []


@pytest.mark.slow
def test_what_our_scheduler_reads_of_its_own_base_is_in_the_table_too() -> None:
    known, ours = tables()["SCHEDULER"], of_our_scheduler()
    tree = ast.parse((PLUGIN / "engine" / "scheduler.py").read_text())
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    assert read - ours - known == set()
