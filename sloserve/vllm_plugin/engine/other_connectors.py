"""What plans may do beside the KV connectors of others: which of them were read, and what they cannot take."""

from typing import Any, Final

FOLLOW_STEPS: Final = {
    "vllm": frozenset(
        {
            "DecodeBenchConnector", "ExampleConnector", "HF3FSKVConnector", "LMCacheMPConnectorUpstream",
            "MoRIIOConnector", "MooncakeConnector", "MooncakeStoreConnector", "NixlConnector", "NixlPullConnector",
            "NixlPushConnector", "OffloadingConnector", "SimpleCPUOffloadConnector",
        }
    ),
    "lmcache": frozenset({"LMCacheMPConnector"}),
}  # fmt: skip
"""Classes of KV connectors, by package, that take what they do in a step from the requests which that step computes, so
that one which it leaves out is to them as one that stock vLLM had no tokens for. (vLLM's name ``LMCacheMPConnector``
stands for LMCache's own class where LMCache has one, and for ``LMCacheMPConnectorUpstream`` elsewhere.)"""

READ_AFTER_PREEMPTION: Final = {"vllm": frozenset({"HF3FSKVConnector", "LMCacheMPConnectorUpstream"})}
"""Classes that copy blocks behind the engine's back and do not wait for the copy when the request is preempted. The
blocks then belong to another request, whose KV may be stored under the wrong prompt."""


def is_known(connector: Any, known: dict[str, frozenset[str]]) -> bool:
    """Return whether the class of ``connector`` is in ``known``, which has names of classes by package."""
    kind = type(connector)
    return kind.__name__ in known.get(kind.__module__.partition(".")[0], ())


def takes_pauses(connector: Any) -> bool:
    """Return whether a running request may be left out of a step beside ``connector``.

    A connector that is neither ours nor known says so by an attribute ``sloserve_pauses = True`` of its class.
    """
    kind = type(connector)
    is_ours = kind.__module__.partition(".")[0] == "sloserve"
    return is_ours or is_known(connector, FOLLOW_STEPS) or bool(getattr(kind, "sloserve_pauses", False))


def hold_back_preempted(scheduler: Any) -> None:
    """Have no request come back in the step before which a plan preempted it.

    vLLM itself admits no request in a step in which it preempts, and connectors rest on that: MooncakeStoreConnector
    forgets what a preempted request was given in the step, and raises into the engine's loop if the step computes the
    request. A connector that answers ``None`` has vLLM ask again in the next step.
    """
    ask = scheduler.connector.get_num_new_matched_tokens

    def get_num_new_matched_tokens(request: Any, num_computed_tokens: int) -> Any:
        if request.request_id in scheduler.preempted_since_step:
            return None, False
        return ask(request, num_computed_tokens)

    scheduler.connector.get_num_new_matched_tokens = get_num_new_matched_tokens
