"""The request router that a deployment of Ray Serve names in its configuration, as request_router_class.

Ray makes one in each process with a handle of the deployment. It calls it in one event loop, and never in parallel.
"""

import asyncio
import logging
from typing import Any

import ray
from ray.serve.request_router import (
    MultiplexMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.fleet.beside.serve_router.calls import read_call
from sloserve.fleet.beside.serve_router.replicas import Replicas, names_of

logger = logging.getLogger(__name__)


class SLORequestRouter(MultiplexMixin, RequestRouter):  # type: ignore[misc]
    """Chooses replicas by the work that they have, by prefixes, and, while all are busy, in the order of deadlines."""

    max_num_routing_tasks_cap = 4096
    """Most requests that wait for a choice at a time; those beyond it wait in the order in which they came."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Take the arguments of ``request_router_kwargs``. Raises: ConfigError."""
        if not hasattr(RequestRouter, "on_request_completed"):
            raise ConfigError(f"Ray {ray.__version__} does not tell routers when requests end; 2.60 does")
        self._slo_replicas = Replicas(kwargs, SystemClock())

    @property
    def max_num_routing_tasks(self) -> int:
        """Number of requests for which a choice may be made at a time: each waits in a task, by its deadline."""
        return self.max_num_routing_tasks_cap

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica alone, and then all others."""
        if pending_request is None:
            return [candidate_replicas]
        by_name = dict(zip(names_of(candidate_replicas), candidate_replicas, strict=True))
        if pending_request.metadata.multiplexed_model_id:
            having = self.apply_multiplex_routing(pending_request=pending_request)
            by_name = {name: one for name, one in by_name.items() if one.replica_id in having} or by_name
        else:
            pending_request.routing_context.should_backoff = True
        key = pending_request.metadata.internal_request_id
        try:
            call = read_call(pending_request.args, pending_request.kwargs)
            ranks = await self._slo_replicas.ranks(key, call, by_name)
        except asyncio.CancelledError:
            self._slo_replicas.completed(key)
            raise
        except Exception:
            logger.exception("a choice failed; Ray chooses the replica with the shortest queue")
            return [list(by_name.values())]
        pending_request.future.add_done_callback(lambda future: self._assigned(future, key))
        return [[by_name[name] for name in rank if name in by_name] for rank in ranks]

    def _assigned(self, future: "asyncio.Future[Any]", key: str) -> None:
        if future.cancelled():
            self._slo_replicas.completed(key)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take in which replicas there are, and what they say."""
        stats = dict(zip(names_of(replicas), (one.routing_stats for one in replicas), strict=True))
        self._slo_replicas.listed(stats, min((one.max_ongoing_requests for one in replicas), default=1))
        super().update_replicas(replicas)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Send nothing more to a replica."""
        self._slo_replicas.lost(replica_id.unique_id)
        super().on_replica_actor_died(replica_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """Take in how many requests a replica says it has."""
        self._slo_replicas.counted(replica_id.unique_id, num_ongoing_requests)
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count a request that goes to a replica, which has not said yet whether it takes it."""
        self._slo_replicas.moved(replica_id.unique_id, 1)
        super().on_send_request(replica_id)

    def decrement_queue_len_cache(self, replica_id: ReplicaID) -> None:
        """Count a request that a replica has taken as ended."""
        self._slo_replicas.moved(replica_id.unique_id, -1)
        super().decrement_queue_len_cache(replica_id)

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Note to which replica a request went, which may be another one than the chosen."""
        self._slo_replicas.routed(pending_request.metadata.internal_request_id, replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """End the request at its replica."""
        self._slo_replicas.completed(internal_request_id, replica_id.unique_id)
