"""What of vLLM's scheduler this package uses stands in ``private_names``, which is checked at the start."""

import ast
from collections.abc import Iterator
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "sloserve" / "vllm_plugin"
FILES = [*sorted((PLUGIN / "engine").glob("*.py")), *sorted((PLUGIN / "swap").glob("*.py"))]

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


def read_of(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Owner, name and line of each attribute that is read of an object of vLLM's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", None)
            for owner, called in OWNERS.items():
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


def test_each_private_name_is_in_the_table_that_the_start_checks() -> None:
    known, ours = tables(), of_our_scheduler()
    unknown = [
        f"{path.relative_to(PLUGIN)}:{line}: {owner} {name}"
        for path in FILES
        for owner, name, line in read_of(ast.parse(path.read_text()))
        if name not in known[owner] | NOT_READ and not (owner == "SCHEDULER" and name in ours)
    ]
    assert unknown == []


def test_what_our_scheduler_reads_of_its_own_base_is_in_the_table_too() -> None:
    known, ours = tables()["SCHEDULER"], of_our_scheduler()
    tree = ast.parse((PLUGIN / "engine" / "scheduler.py").read_text())
    read = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    assert read - ours - known == set()
