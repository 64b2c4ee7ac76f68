"""The columns of many rows at once, read from vLLM's requests. Those of one row: :mod:`sloserve.engine.columns`."""

from collections.abc import Mapping
from typing import Any, Final

from vllm.v1.request import Request

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.requests import read_counts

_ATTRIBUTES: Final = {
    "computed_tokens": "num_computed_tokens",
    "in_flight_tokens": "num_in_flight_tokens",
    "output_tokens": "_output_token_ids",  # as num_output_tokens, a call less for each
}


def read_columns(requests: list[Any], slots: IntArray, columns: Mapping[str, IntArray]) -> None:
    """See :meth:`sloserve.engine.port.RequestReader.read`."""
    read_counts(requests, slots, tuple(map(_ATTRIBUTES.__getitem__, columns)), list(columns.values()))


def item_tokens(request: Request) -> int:
    """The longest image or other multimodal item of the prompt, in tokens; 0 where it has none."""
    return max((one.mm_position.length for one in request.mm_features or ()), default=0)
