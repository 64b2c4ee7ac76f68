"""The interface to an engine that planner, guards and request table use: live vLLM, or a model of it.

An engine has requests, two queues and limits of its own; a port reads them and carries plans out. Nothing here knows
vLLM, and each engine with an :class:`EnginePort` gets the very same planner, plan budget, ageing, guards and shadow.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sloserve.core.arrays import IntArray
from sloserve.core.rows import State
from sloserve.core.stated import StatedSLO
from sloserve.lso.preemption import Holding
from sloserve.scheduler.policy import EngineFacts


class EngineRequest(Protocol):
    """A request as the engine has it, with counts in tokens.

    Tokens in flight are scheduled, and their result is not yet seen.
    """

    @property
    def request_id(self) -> str: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_in_flight_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...


class RequestReader(Protocol):
    """Reads requests and results of steps, which each engine holds in its own form. It changes nothing."""

    def is_plannable(self, request: Any) -> bool:
        """Return whether plans may touch the request at all; a request that they may not touch gets no row."""

    def may_be_skipped(self, request: Any) -> bool:
        """Return whether it goes on as before after a step without it, so that plans may pause or preempt it."""

    def is_blocked(self, request: Any) -> bool:
        """Return whether it waits for something the scheduler cannot give: a grammar, remote KV, the next input."""

    def state_of(self, request: Any) -> State:
        """Return the state of an unfinished request that is not blocked."""

    def is_aborted(self, request: Any) -> bool:
        """Return whether an ending request was left by its client or stopped by an error, with an incomplete output."""

    def lora_id(self, request: Any) -> int | None:
        """Return the id of the adapter that it needs, if any."""

    def cached_tokens(self, request: Any) -> int | None:
        """Return the prompt tokens found in the prefix cache at its first admission; ``None`` if not known (yet)."""

    def hit_tokens(self, request: Any, before: int) -> int:
        """Return the tokens that a waiting request would find in the engine's prefix cache if it were admitted now.

        Args:
            request: The request.
            before: The result of the last call, 0 without one; where little has changed since, it makes this one cheap.
        """

    def prompt_contents(self, request: Any, stretch_tokens: int) -> Sequence[Hashable]:
        """Return the content of each whole stretch of a request's prompt, in order.

        Two requests have an equal entry at a place if all their tokens up to the end of that stretch are equal, so that
        the prefix cache finds one in place of the other. The result is empty where there is no prefix cache.

        Args:
            request: The request.
            stretch_tokens: Tokens of a stretch, which is rounded down to whole blocks, but is one block at least.
        """

    def items_to_encode(self, request: Any, computed: int) -> tuple[int, int]:
        """Return the tokens of multimodal items that the encoder has to compute for a waiting request.

        The first number is of the items without which no token can be computed, the second is of all items.

        Args:
            request: The request.
            computed: Tokens at the start of the prompt that have KV already, so that their items are not needed.
        """

    def swapped_tokens(self, request: Any) -> int:
        """Return the tokens of a preempted request with KV in the host pool, loading or not; 0 if nothing is kept."""

    def static_columns(self, request: Any, stated: StatedSLO) -> dict[str, float]:
        """Return the columns of its row that are known when it is queued, and do not change."""

    def live_columns(self, request: Any, stated: StatedSLO, now_s: float) -> dict[str, float]:
        """Return the columns that say how far it has come, for a row that is made while it is being served."""

    def read(self, requests: list[Any], slots: IntArray, columns: Mapping[str, IntArray]) -> None:
        """Write what changes with every step, of the requests in ``slots``, into these slots of ``columns``.

        The planner passes running requests alone.

        Args:
            requests: The requests by slot, ``None`` in other slots.
            slots: Slots of the requests to read.
            columns: Some of :data:`~sloserve.core.rows.READ_COLUMNS`, by name.
        """

    def tokens_scheduled(self, step: Any) -> tuple[dict[str, int], int] | None:
        """Return the tokens that a scheduled step computes of each request, by id, and their sum.

        The result is ``None`` if the columns of :meth:`read` may change by more than these tokens and the sampled ones,
        so that they are read at each step.
        """

    def tokens_sampled(self, results: Any) -> tuple[list[list[int]], dict[str, int]] | None:
        """Return the new tokens of each request of a step, and the places of the requests in them, by id.

        The result is ``None`` as in :meth:`tokens_scheduled`.
        """

    @property
    def num_drafts(self) -> int:
        """Draft tokens that a decode has in a step at most; 0 where the engine drafts none."""

    def drafts_of(self, step: Any, ids: Sequence[str]) -> Sequence[int]:
        """Return how many draft tokens a scheduled step verifies of each request, ``[len(ids)]``."""

    def admitted_ids(self, output: Any) -> Sequence[str]:
        """Return the ids of the requests that a scheduled step admitted, in order of admission."""

    def new_tokens(self, outputs: Any) -> tuple[Sequence[str], Sequence[int] | IntArray]:
        """Return the requests that got new output tokens from a step's results: their ids, and how many each."""


class EnginePort(RequestReader, Protocol):
    """One engine, between two of its steps."""

    @property
    def running(self) -> Sequence[Any]:
        """Admitted requests in order of service."""

    @property
    def waiting(self) -> Iterable[Any]:
        """Requests that wait, in order of admission."""

    @property
    def requests(self) -> Mapping[str, Any]:
        """All requests that the engine has, by id."""

    @property
    def max_loras(self) -> int | None:
        """Adapters that may run at once; ``None`` where it serves none."""

    @property
    def takes_back_computed(self) -> bool:
        """Whether tokens of a running request may lose their KV without a preemption, as where a load of KV fails."""

    @property
    def free_slots(self) -> int:
        """How many more requests could be admitted now; the same as in :meth:`facts`, without its other figures."""

    def facts(self, num_running: int, others: Iterable[Any]) -> EngineFacts:
        """Return what the engine can do for the requests of a snapshot, as of now.

        Args:
            num_running: Number of these requests that run.
            others: Requests that are not in the snapshot and may hold KV.
        """

    def holding(self, request: Any) -> Holding:
        """Return the KV blocks of a running request: its own blocks, and the blocks that it shares."""

    def drafts_ready(self, slots: IntArray, table: Any) -> IntArray:
        """Return how many drafts each of the running requests in ``slots`` of ``table`` has for the next step."""

    def trim_drafts(self, slots: IntArray, lengths: IntArray, table: Any) -> int:
        """Limit the drafts of the running requests in ``slots`` of ``table`` to ``lengths`` for the next step.

        Returns: how many drafts were left out.
        """

    def running_requests(self, slots: Any, table: Any) -> list[Any]:
        """Return the requests in ``slots`` of ``table``, all of which run.

        Raises: an error if one does not run.
        """

    def apply_plan(self, plan: Any, table: Any, limits: Any) -> list[Any]:
        """Order the queues that the plan orders, narrow the limits and pause, all for the next step, or none of it.

        Args:
            plan: The plan, without its preemptions, which came before.
            table: The request table, which resolves the plan's slots to requests.
            limits: The engine's own limits, which are restored after the step.

        Returns: the requests that it paused, in the plan's order.
        Raises: whatever it meets, and all is as it was.
        """
