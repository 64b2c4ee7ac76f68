"""A logits processor with state, as an operator may give vLLM one (``--logits-processors``)."""

from typing import Any

from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from tests.equality.workloads import RISING


class Rising(LogitsProcessor):
    """Its state is that of rows of the batch, which vLLM forgets and makes anew where a request is skipped."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._replies: dict[int, list[int]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._replies.pop(row, None)
        for row, params, _, reply in batch_update.added:
            self._replies.pop(row, None)
            if (params.extra_args or {}).get(RISING):
                self._replies[row] = reply
        for one, other, direction in batch_update.moved:
            mine, its = self._replies.pop(one, None), self._replies.pop(other, None)
            if mine is not None:
                self._replies[other] = mine
            if its is not None and direction == MoveDirectionality.SWAP:
                self._replies[one] = its

    def apply(self, logits: Any) -> Any:
        for row, reply in self._replies.items():
            if reply:
                logits[row, : reply[-1]] = -float("inf")
        return logits
