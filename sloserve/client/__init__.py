"""The client's side of OpenAI endpoints: the load generator of ``sloserve bench``, which sends requests on time and
notes when tokens come, and the token buffer, which hands a stream on at its reader's pace.

Knows requests as values of ``core`` and HTTP through httpx; nothing of workload files, reports or vLLM.
"""

from sloserve.client.pacing import BufferReport, Stall
from sloserve.client.token_buffer import TokenBuffer

__all__ = ["BufferReport", "Stall", "TokenBuffer"]
