"""The number of replicas follows the load of the engines."""

from __future__ import annotations

import time
from typing import Any, Union

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from .._native import Engine


class LoadMeter:
    """The load of an engine: the share of its workers' time that is used, plus the seconds of work that wait."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = engine.stats()
        self._at = time.monotonic()

    def load(self) -> float:
        """The load since the last call."""
        now, stats = time.monotonic(), self._engine.stats()
        busy = stats["busy_seconds"] - self._before["busy_seconds"]
        rows = stats["computed_rows"] - self._before["computed_rows"]
        elapsed = max(now - self._at, 1e-3)
        self._before, self._at = stats, now
        waiting = stats["ready_rows"] * busy / rows if rows else 0.0
        return (busy / elapsed + waiting) / stats["workers"]


class ByLoad:
    """Ray Serve's autoscaling policy: as many replicas as bring the mean load to ``target_load``."""

    def __init__(self, target_load: float) -> None:
        self._target_load = target_load

    def __call__(self, context: AutoscalingContext) -> tuple[Union[int, float], dict[str, Any]]:
        loads = list((context.aggregated_metrics or {}).get("load", {}).values())
        if not loads:
            return context.target_num_replicas, {}
        mean = sum(loads) / len(loads)
        return context.current_num_replicas * mean / self._target_load, {}


def autoscaling(
    *, min_replicas: int = 1, max_replicas: int = 8, target_load: float = 0.7, **options: Any
) -> AutoscalingConfig:
    """Replicas by the load of their engines.

    The load of a replica is the share of its workers' time that is used, plus the seconds of work that wait.

    :param target_load: the load that is aimed at; above 1, requests wait longer and longer.
    :param options: others of :class:`ray.serve.config.AutoscalingConfig`, as ``upscale_delay_s``.
    """
    if not target_load > 0:
        raise ValueError(f"target_load is {target_load}; it must be above 0")
    policy_class: Any = AutoscalingPolicy
    policy = policy_class(policy_function=ByLoad, policy_kwargs={"target_load": target_load})
    return AutoscalingConfig(min_replicas=min_replicas, max_replicas=max_replicas, policy=policy, **options)
