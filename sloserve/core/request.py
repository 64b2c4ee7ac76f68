"""A request of a workload: when it arrives, how long it is, what it asks for.

It has no text, since scheduling depends on lengths alone.
"""

from dataclasses import dataclass

from sloserve.core.slo import SLO

PREFIX_BLOCK_TOKENS = 512
"""Tokens that one id of ``prefix_ids`` stands for unless the request says otherwise (Mooncake's trace format)."""


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a trace or of a generator.

    arrival_s: seconds from the start of the run. prompt_tokens, output_tokens: at least 1 each. task: the trace's own
    label.
    max_tokens: the client's cap on output; ``None``: whatever the context length leaves. priority: lower is earlier
    (vLLM).
    prefix_ids: ids of the prompt's blocks of ``prefix_block_tokens`` tokens; two prompts share KV as far as their
    leading ids agree; empty: shares nothing. model: that it asks for; empty where there is one.
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
