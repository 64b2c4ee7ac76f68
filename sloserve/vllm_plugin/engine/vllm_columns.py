"""Read the columns of many rows at once from vLLM's requests; for one row, see :mod:`sloserve.engine.columns`."""

from collections.abc import Container, Mapping
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
    """Return the longest image or other multimodal item of the prompt, in tokens; 0 where it has none."""
    return max((item.mm_position.length for item in request.mm_features or ()), default=0)


def items_to_encode(request: Request, computed: int, cached: Container[str], lookahead: int) -> tuple[int, int]:
    """Return what :meth:`sloserve.engine.port.RequestReader.items_to_encode` does, as vLLM's scheduler counts.

    vLLM computes nothing of a request while the encoder has no room for the item that its next token lies in, or that
    begins within the lookahead behind it. It computes the text before an item without room for the item.

    Args:
        request: a request that waits.
        computed: Tokens of its prompt that have KV already.
        cached: identifiers of the items that the encoder's cache holds.
        lookahead: tokens by which draft layers look ahead.
    """
    first, found = 0, dict[str, int]()
    for item in request.mm_features or ():
        place, name = item.mm_position, item.identifier
        if place.offset + place.length > computed and name not in found and name not in cached:
            found[name] = place.get_num_embeds()
            if place.offset <= computed + lookahead:
                first += found[name]
    return first, sum(found.values())
