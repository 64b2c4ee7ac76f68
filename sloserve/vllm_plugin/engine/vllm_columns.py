"""The columns of many rows at once, read from vLLM's requests. Those of one row: :mod:`sloserve.engine.columns`."""

from collections.abc import Mapping, Sequence

import numpy as np
from vllm.v1.request import Request

from sloserve.core.arrays import IntArray


def gathered(requests: Sequence[Request], columns: frozenset[str]) -> Mapping[str, IntArray]:
    """``columns``, of :data:`~sloserve.core.rows.READ_COLUMNS`, of all ``requests``: ``[len(requests)]`` each.

    Written out, one comprehension for each: three times as fast as by the names of the columns, for any of them.
    """
    found: dict[str, IntArray] = {}
    if "computed_tokens" in columns:
        found["computed_tokens"] = np.array([r.num_computed_tokens for r in requests], np.int64)
    if "in_flight_tokens" in columns:
        found["in_flight_tokens"] = np.array([r.num_in_flight_tokens for r in requests], np.int64)
    if "output_tokens" in columns:
        # As num_output_tokens, a call less for each.
        found["output_tokens"] = np.array([len(r._output_token_ids) for r in requests], np.int64)
    return found


def item_tokens(request: Request) -> int:
    """The longest image or other multimodal item of the prompt, in tokens; 0 where it has none."""
    return max((one.mm_position.length for one in request.mm_features or ()), default=0)
