"""States of the requests in vLLM's output processor: its figures of each output, and whether a first token is out."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from sloserve.engine.containment import Containment
from sloserve.vllm_plugin.server.observe import EngineCall, entering
from sloserve.vllm_plugin.server.tracing import Tracing


class OutputStates:
    """The output processor's states of one engine client's requests.

    Args:
        output_processor: vLLM's output processor.
        tracing: Traces of the requests; ``None`` without them.
    """

    def __init__(self, output_processor: Any, tracing: Tracing | None) -> None:
        self._states, self._tracing = output_processor.request_states, tracing
        self._contain = Containment(Counter(), "sloserve failed to find vLLM's figures of a request; it is served")
        output_processor.add_request = self._noting_outputs(output_processor.add_request)

    def _noting_outputs(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``OutputProcessor.add_request`` to keep vLLM's figures of a request; with n > 1, of each of its outputs.

        The whole output of such a request comes with the figures of the part that ended last.
        """

        def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            added = stock(request, *args, **kwargs)
            self._contain(None, self._note, request)
            return added

        return add_request

    def _note(self, request: Any) -> None:
        call, state = entering.get(), self._states.get(request.request_id)
        if call is not None and state is not None and state.stats is not None:
            call.figures[request.request_id] = state.stats
            if self._tracing is not None:
                self._tracing.entered(state)

    def is_prefilling(self, call: EngineCall) -> bool:
        """Return whether a call has no token yet, as far as this process can know."""
        if call.engine_request_id is None:
            return True
        state = self._states.get(call.engine_request_id) or self._states.get(f"0_{call.engine_request_id}")
        return state is not None and bool(state.is_prefilling)
