"""The columns of many rows at once, read from vLLM's requests. Those of one row: :mod:`sloserve.engine.columns`."""

from collections.abc import Mapping, Sequence
from typing import Final

from vllm.v1.request import Request

from sloserve.core.arrays import IntArray
from sloserve.kernels.requests import counts_of

_ATTRIBUTES: Final = {
    "computed_tokens": "num_computed_tokens",
    "in_flight_tokens": "num_in_flight_tokens",
    "output_tokens": "_output_token_ids",  # as num_output_tokens, a call less for each
}


def gathered(requests: Sequence[Request], columns: frozenset[str]) -> Mapping[str, IntArray]:
    """``columns``, of :data:`~sloserve.core.rows.READ_COLUMNS`, of all ``requests``: ``[len(requests)]`` each."""
    names = tuple(columns)
    return dict(zip(names, counts_of(requests, tuple(_ATTRIBUTES[name] for name in names)), strict=True))


def item_tokens(request: Request) -> int:
    """The longest image or other multimodal item of the prompt, in tokens; 0 where it has none."""
    return max((one.mm_position.length for one in request.mm_features or ()), default=0)
