"""The project's own CSV format: arrival_s, prompt_tokens, output_tokens, task, hash_ids, tenant.

task, hash_ids and tenant may be absent; without arrival_s the file holds lengths only.
"""

from pathlib import Path

import numpy as np

from sloserve.sim.workloads.readers import table
from sloserve.sim.workloads.readers.source import RawRows

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
COLUMNS = (
    table.seconds("arrival_s"),
    table.tokens("prompt_tokens"),
    table.tokens("output_tokens"),
    table.text("task"),
    table.ids("hash_ids"),
    table.tenant("tenant"),
)


def read(path: Path) -> RawRows:
    """Return the rows of the file; without an ``arrival_s`` column they have lengths only.

    Raises: ConfigError for a malformed file.
    """
    arrivals, prompts, outputs = [np.empty(0)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    tasks: list[str] = []
    prefix_ids: list[tuple[int, ...]] | None = None
    tenants: list[str] | None = None
    all_lines: list[int] = []
    has_arrivals = True
    for lines, chunk in table.read_chunks(path, COLUMNS):
        has_arrivals = "arrival_s" in chunk
        if has_arrivals:
            arrivals.append(np.asarray(chunk["arrival_s"], np.float64))
        prompts.append(np.asarray(chunk["prompt_tokens"], np.int64))
        outputs.append(np.asarray(chunk["output_tokens"], np.int64))
        tasks.extend(chunk.get("task", [""] * len(lines)))
        if "tenant" in chunk:
            tenants = tenants or []
            tenants.extend(chunk["tenant"])
        if "hash_ids" in chunk:
            prefix_ids = prefix_ids or []
            prefix_ids.extend(chunk["hash_ids"])
            all_lines.extend(lines)
    return RawRows(
        arrival_s=np.concatenate(arrivals) if has_arrivals else None,
        prompt_tokens=np.concatenate(prompts),
        output_tokens=np.concatenate(outputs),
        task=tasks,
        prefix_ids=prefix_ids,
        lines=all_lines if prefix_ids is not None else None,
        tenant=tenants,
    )
