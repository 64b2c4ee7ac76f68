"""The interface to an engine that planner, guards and request table use: live vLLM, or a model of it.

An engine has requests, two queues and limits of its own; a port reads them and carries plans out. Nothing here knows
vLLM, and each engine with an :class:`EnginePort` gets the very same planner, plan budget, ageing, guards and shadow.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sloserve.core.arrays import IntArray
from sloserve.core.rows import State
from sloserve.core.stated import StatedSLO
from sloserve.lso.preemption import Holding
from sloserve.scheduler.policy import EngineFacts


class EngineRequest(Protocol):
    """A request as the engine has it. Counts are in tokens; in flight: scheduled, and the result not yet seen."""

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
    """What is read of a request or of a step's results, which each engine holds in its own form. Changes nothing."""

    def is_plannable(self, request: Any) -> bool:
        """Whether plans may touch the request at all; one that they may not gets no row."""

    def may_be_skipped(self, request: Any) -> bool:
        """Whether it goes on as before after a step without it, so that plans may pause or preempt it."""

    def is_blocked(self, request: Any) -> bool:
        """Whether it waits for something that is not the scheduler's to give: a grammar, remote KV, the next input."""

    def state_of(self, request: Any) -> State:
        """Where an unfinished request stands that is not blocked."""

    def is_aborted(self, request: Any) -> bool:
        """Whether a request that ends was left by its client or ended by an error, so that its reply is not whole."""

    def lora_id(self, request: Any) -> int | None:
        """The adapter that it needs, if any."""

    def cached_tokens(self, request: Any) -> int | None:
        """Prompt tokens found in the prefix cache at its first admission; ``None`` where that is not known (yet)."""

    def hit_tokens(self, request: Any, before: int) -> int:
        """Tokens that a waiting request would find in the engine's own prefix cache if it were admitted now.

        before: the last answer, 0 without one; where little has changed since, it makes this one cheap.
        """

    def swapped_tokens(self, request: Any) -> int:
        """Tokens whose KV the host pool keeps, for a preempted request, loading or not; 0 where it keeps nothing."""

    def static_columns(self, request: Any, stated: StatedSLO) -> dict[str, float]:
        """Columns of its row that are known when it is queued, and do not change."""

    def live_columns(self, request: Any, stated: StatedSLO, now_s: float) -> dict[str, float]:
        """Columns that say how far it has come, for a row that is made while it is being served."""

    def read(self, requests: list[Any], slots: IntArray, columns: Mapping[str, IntArray]) -> None:
        """Writes what changes with every step, of the requests in ``slots``, into these slots of ``columns``.

        Called with running requests. requests: by slot, ``None`` in others. columns: some of
        :data:`~sloserve.core.rows.READ_COLUMNS`.
        """

    def tokens_scheduled(self, step: Any) -> tuple[dict[str, int], int] | None:
        """Tokens that a scheduled step computes of each request, by id, and their sum; ``None`` where the columns of
        :meth:`read` may change otherwise than by these tokens and those sampled, so that they are read at each step.
        """

    def tokens_sampled(self, results: Any) -> tuple[list[list[int]], dict[str, int]] | None:
        """New tokens of each request of a step, and whose they are: places by id. ``None`` as above."""

    @property
    def num_drafts(self) -> int:
        """Draft tokens that a decode has in a step at most; 0 where the engine drafts none."""

    def drafts_in(self, step: Any) -> Mapping[str, int]:
        """Draft tokens that a scheduled step verifies of each request that has some, by id."""

    def admitted_ids(self, output: Any) -> Sequence[str]:
        """Ids of the requests that a scheduled step admitted, in order of admission."""

    def new_tokens(self, outputs: Any) -> tuple[Sequence[str], Sequence[int]]:
        """The requests that a step's results brought new output tokens: their ids, and how many each."""


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
        """All that it has, by id."""

    @property
    def max_loras(self) -> int | None:
        """Adapters that may run at once; ``None`` where it serves none."""

    @property
    def takes_back_computed(self) -> bool:
        """Whether tokens of a running request may lose their KV without a preemption, as where a load of KV fails."""

    @property
    def free_slots(self) -> int:
        """How many more requests could be admitted now; as in :meth:`facts`, without the rest of it."""

    def facts(self, num_running: int, others: Iterable[Any]) -> EngineFacts:
        """What it can do for the requests of a snapshot, as of now.

        Args:
            num_running: how many of them run.
            others: requests that are not in the snapshot and may hold KV.
        """

    def holding(self, request: Any) -> Holding:
        """KV blocks of a running request: its own, and those that it shares."""

    def trim_drafts(self, slots: IntArray, lengths: IntArray, table: Any) -> int:
        """Leave the running requests in ``slots`` of ``table`` at most as many drafts for the next step.

        Returns: how many drafts were left out.
        """

    def running_requests(self, slots: Any, table: Any) -> list[Any]:
        """The requests in ``slots`` of ``table``, all of which run. Raises: an error if one does not."""

    def apply_plan(self, plan: Any, table: Any, limits: Any) -> list[Any]:
        """Orders the queues that the plan orders, narrows the limits and pauses, all for the next step, or none of it.

        Args:
            plan: without its preemptions, which came before.
            table: resolves the plan's slots to requests.
            limits: the engine's own, restored after the step.

        Returns: the requests that it paused, in the plan's order. Raises: whatever it meets, and all is as it was.
        """
