"""Reasons why an engine follows no plans, or pauses or preempts no request: where equal outputs are not yet shown."""

from typing import Any, Final

from vllm.v1.core.sched.output import GrammarOutput

from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.other_connectors import no_pauses_beside, no_preemptions_beside
from sloserve.vllm_plugin.kv_groups import layout_of


def identity_reason(scheduler: Any) -> str | None:
    """Return why only the identity plan is safe with this engine; ``None`` if plans are shown to keep outputs equal."""
    config = scheduler.vllm_config
    if config.model_config.runner_type == "pooling":
        return "pooling models"
    if scheduler.use_pp:
        return "pipeline parallelism"
    if scheduler.is_encoder_decoder:
        return "encoder-decoder models"
    # Decode context parallelism changes only how many tokens a block holds, and the managers' block size says that.
    ranks = getattr(config.parallel_config, "prefill_context_parallel_size", 1)
    if ranks > 1:
        return f"context parallelism (prefill_context_parallel_size {ranks})"
    try:
        layout_of(scheduler)
    except LookupError as error:
        return f"{error.args[0]}, a kind of KV cache whose blocks it cannot count"
    return None


def other_than_full_attention(scheduler: Any) -> str | None:
    """Return what hinders a policy that counts blocks as tokens / block size.

    ``None`` means that all layers keep all tokens.
    """
    if layout_of(scheduler).is_full:
        return None
    return "a KV cache of several groups or with windows under a policy that counts tokens / block size"


_NOT_SHOWN: Final = "where equal replies are not yet shown on a GPU"


def no_pauses_reason(scheduler: Any) -> str | None:
    """Return why no request may be paused, or ``None`` where pausing is shown to keep outputs equal.

    The V2 model runner keeps the drafts of a request that a step leaves out, and its grammar has not checked them: vLLM
    0.32 tells it to accept none, see docs/vllm-features.md.
    """
    if scheduler.num_spec_tokens and scheduler.vllm_config.use_v2_model_runner:
        method = scheduler.vllm_config.speculative_config.method
        if method != "draft_model":
            return f"speculative decoding by {method} on the V2 model runner, {_NOT_SHOWN}"
        if not hasattr(GrammarOutput, "num_acceptable_drafts"):
            return "speculative decoding on the V2 model runner before vLLM 0.32, which may accept unchecked drafts"
    return next(filter(None, map(no_pauses_beside, compat.connectors(scheduler))), None)


def no_preemptions_reason(scheduler: Any) -> str | None:
    """Return why no plan may preempt a request, or ``None`` where preempting is safe."""
    return next(filter(None, map(no_preemptions_beside, compat.connectors(scheduler))), None)
