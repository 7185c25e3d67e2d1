"""The actor that keeps the states of an application's sequences."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from ._states import States

NAMESPACE = "gatestream"
# A resource of the node of Ray's own controllers, whose loss ends the application anyway.
HEAD = "node:__internal_head__"
# Without a replica for so long, the application is gone. Replicas call it at each health check.
UNUSED_SECONDS = 120.0


class Store(States):
    """:class:`States` of an application; ends when no replica has called it for a while."""

    def __init__(self, limit: int, idle_seconds: float) -> None:
        super().__init__(limit, idle_seconds)
        self._called = time.monotonic()
        actor = ray.get_runtime_context().current_actor
        threading.Thread(target=self._end_unused, args=(actor,), daemon=True).start()

    def alive(self) -> None:
        """A replica is alive."""
        self._called = time.monotonic()

    def _end_unused(self, actor: Any) -> None:
        while time.monotonic() - self._called < UNUSED_SECONDS:
            time.sleep(UNUSED_SECONDS / 10)
        ray.kill(actor)


def open_store(application: str, limit: int, idle_seconds: float) -> Any:
    """The application's store, which the first replica starts. It outlives replicas, also at updates."""
    actor: Any = ray.remote(Store)
    store = actor.options(
        name=f"states of {application}",
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=-1,
        num_cpus=0,
        resources={HEAD: 0.001},
    ).remote(limit, idle_seconds)
    ray.get(store.configure.remote(limit, idle_seconds))
    return store
