"""Find what plans may do beside other parties' KV connectors: which were read, and what they cannot take."""

from importlib.metadata import PackageNotFoundError, version
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
"""Classes of KV connectors, by package, that act in a step on the requests which that step computes.

To them, a request that a step leaves out is like one for which stock vLLM had no tokens. (vLLM's name
``LMCacheMPConnector`` stands for LMCache's own class where LMCache has one, and for ``LMCacheMPConnectorUpstream``
elsewhere.)
"""

READ_AFTER_PREEMPTION: Final = {"vllm": frozenset({"HF3FSKVConnector", "LMCacheMPConnectorUpstream"})}
"""Classes that copy blocks behind the engine's back and do not wait for the copy when the request is preempted.

The blocks then belong to another request, and its KV may be stored under the wrong prompt.
"""


READ_LMCACHE: Final = ("0.5.6",)
"""Versions of LMCache with a connector that was read. Versions before 0.5.6 do not wait for their stores on a CUDA
device when a request is preempted: ``flush_inflight_stores`` of their ``LMCacheDrivenTransferContext`` does nothing."""


def is_known(connector: Any, known: dict[str, frozenset[str]]) -> bool:
    """Return whether the class of ``connector`` is in ``known``, which has names of classes by package."""
    kind = type(connector)
    return kind.__name__ in known.get(_package(kind), ())


def no_pauses_beside(connector: Any) -> str | None:
    """Return why no running request may be left out of a step beside ``connector``, or ``None`` where one may.

    A connector that is neither ours nor known says so by an attribute ``sloserve_pauses = True`` of its class.
    """
    kind = type(connector)
    if _package(kind) == "sloserve" or getattr(kind, "sloserve_pauses", False):
        return None
    if not is_known(connector, FOLLOW_STEPS):
        return f"KV connector {kind.__name__}, of which it is not known whether it minds steps without a request"
    unread = _unread_lmcache(kind)
    return None if unread is None else f"{unread}, of which it is not known whether it minds steps without a request"


def no_preemptions_beside(connector: Any) -> str | None:
    """Return why no plan may preempt a request beside ``connector``, or ``None`` where one may."""
    kind = type(connector)
    who = f"KV connector {kind.__name__}" if is_known(connector, READ_AFTER_PREEMPTION) else _unread_lmcache(kind)
    if who is None:
        return None
    return f"{who} may still copy the blocks of a preempted request when another one writes them"


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _unread_lmcache(kind: type) -> str | None:
    """Return the name of a connector of an LMCache version that was not read, with a remedy; ``None`` for any other."""
    if _package(kind) != "lmcache":
        return None
    try:
        installed = version("lmcache")
    except PackageNotFoundError:
        installed = "whose version is unknown"
    if installed.partition("+")[0] in READ_LMCACHE:
        return None
    return (
        f"KV connector {kind.__name__} of LMCache {installed} (only {', '.join(READ_LMCACHE)} was checked; install it)"
    )


def hold_back_preempted(scheduler: Any) -> None:
    """Have no request come back in the step before which a plan preempted it.

    vLLM itself admits no request in a step in which it preempts, and connectors rest on that: MooncakeStoreConnector
    forgets what a preempted request was given in the step, and raises into the engine's loop if the step computes the
    request. A connector that returns ``None`` has vLLM ask again in the next step.
    """
    ask = scheduler.connector.get_num_new_matched_tokens

    def get_num_new_matched_tokens(request: Any, num_computed_tokens: int) -> Any:
        if request.request_id in scheduler.preempted_since_step:
            return None, False
        return ask(request, num_computed_tokens)

    scheduler.connector.get_num_new_matched_tokens = get_num_new_matched_tokens
