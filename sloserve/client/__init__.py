"""The client's side of OpenAI endpoints: the load generator of ``sloserve bench`` and the token buffer.

The load generator sends requests on time and records when tokens come; the token buffer hands a stream on at its
reader's pace. The package knows requests as values of ``core`` and HTTP through httpx; it knows nothing of workload
files, reports or vLLM.
"""

from sloserve.client.pacing import BufferReport, Stall
from sloserve.client.token_buffer import TokenBuffer

__all__ = ["BufferReport", "Stall", "TokenBuffer"]
