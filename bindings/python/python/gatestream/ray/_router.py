"""Requests of a sequence go to one replica, others to the replica with the shorter queue."""

from __future__ import annotations

import random
import uuid
from typing import Any, Optional

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import PendingRequest, RunningReplica


class SequenceRouter(ConsistentHashRouter):
    """Chooses the replica of a sequence by a hash of its name, so that all routers choose the same.

    Of two random replicas the one with the shorter queue gets a request without a sequence.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        # A busy replica does not send its sequences elsewhere: they would have to be read there.
        super().initialize_state(num_fallback_replicas=0, **kwargs)

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        # Requests that a deployment sends while it answers one have the id of that one. The base class finds
        # requests by their ids, and would forget all but one of them.
        if not is_retry:
            pending_request.metadata.internal_request_id = str(uuid.uuid4())
        return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: Optional[PendingRequest] = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None or pending_request.metadata.session_id or len(candidate_replicas) < 2:
            return await super().choose_replicas(candidate_replicas, pending_request)
        # Waits a while before it asks again if both are full.
        pending_request.routing_context.should_backoff = True
        return [random.sample(candidate_replicas, 2)]
