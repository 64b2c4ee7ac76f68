"""A request of a workload: when it arrives, how long it is, what it asks for.

It has no text, since scheduling depends on lengths alone.
"""

from dataclasses import dataclass

from sloserve.core.slo import SLO
from sloserve.core.tasks import TaskCall

PREFIX_BLOCK_TOKENS = 512
"""Tokens that one id of ``prefix_ids`` stands for unless the request says otherwise (Mooncake's trace format)."""
OUTPUT_ID = -1
"""The id in ``prefix_ids`` of tokens that an engine in virtual time generated, in every output.

A prompt that repeats the output of an earlier request, as the next call of an agent does, names its blocks by this id.
It hits the full blocks of the output in the prefix cache, as vLLM caches them under their hashes, if all before them is
the same as well.
"""


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a trace or of a generator.

    Args:
        arrival_s: Seconds from the start of the run.
        prompt_tokens: Length of the prompt in tokens, at least 1.
        output_tokens: Length of the output in tokens, at least 1.
        task: The trace's own label.
        max_tokens: The client's cap on output tokens; ``None`` for whatever the context length leaves.
        priority: vLLM's priority; a lower number is served earlier.
        prefix_ids: Ids of the prompt's blocks of ``prefix_block_tokens`` tokens, at least 0, or ``OUTPUT_ID``. Two
            prompts share KV as far as their leading ids agree; a prompt without ids shares nothing.
        model: Name of the model that the request asks for; empty where there is only one.
        prefix_block_tokens: Tokens of each block that ``prefix_ids`` names.
        tenant: Name of the tenant that sends it; empty where it is not known.
        adapter: Name of the LoRA adapter that it asks for; empty for the model itself.
        call: The task that it is a call of, with a deadline in seconds from the start of the run; ``None`` for a
            request that is no part of a task.
    """

    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    slo: SLO
    task: str = ""
    max_tokens: int | None = None
    priority: int = 0
    prefix_ids: tuple[int, ...] = ()
    model: str = ""
    prefix_block_tokens: int = PREFIX_BLOCK_TOKENS
    tenant: str = ""
    adapter: str = ""
    call: TaskCall | None = None
