"""A Ray Serve application: models on many machines, with sequences that survive the death of a replica.

>>> import gatestream.ray
>>> from ray import serve
>>> application = gatestream.ray.application({"speech": "speech.safetensors"}, num_replicas=2)
>>> serve.run(application)                                       # HTTP on port 8000, Open Inference Protocol
>>> handle = serve.get_deployment_handle("speech", "default")
>>> y = handle.infer.remote(x).result()                          # [steps, features] to [steps, outputs]
>>> stream = handle.options(session_id="caller 17")              # the replica of this sequence
>>> y = stream.step.remote(x, "caller 17", start=True).result()  # the next steps of it
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional, Union

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from .._native import Model
from ..errors import InputError
from ._ingress import Ingress
from ._replica import Limits, Replica
from ._router import SequenceRouter
from ._scaling import autoscaling
from ._states import SequenceError
from ._store import HEAD

INGRESS = "ingress"

__all__ = ["SequenceError", "application", "autoscaling"]


def application(
    models: Mapping[str, Union[Model, str, os.PathLike[str]]],
    *,
    num_replicas: Union[int, AutoscalingConfig] = 1,
    num_cpus: float = 1,
    plan: Optional[Union[str, os.PathLike[str]]] = None,
    engine: Optional[Mapping[str, Any]] = None,
    max_ongoing_requests: int = 1000,
    max_queued_requests: int = 10_000,
    max_sequences: int = 10_000,
    idle_seconds: float = 60.0,
    ingress_replicas: int = 1,
) -> serve.Application:
    """An application for :func:`ray.serve.run`, with a deployment of each model and an ingress for HTTP.

    :param models: by name. Files are opened by each replica, so that each machine must have them.
    :param num_replicas: those of each model, or :func:`autoscaling`.
    :param num_cpus: cores of a replica, which no other replica of the machine gets. Below 1: all, shared.
    :param plan: a file with the plans of ``gatestream tune``.
    :param engine: keywords of :class:`gatestream.Engine`.
    :param max_ongoing_requests: requests of a replica at once.
    :param max_queued_requests: requests of an ingress that wait for a replica; further ones get the status 429.
    :param max_sequences: open sequences of the application.
    :param idle_seconds: the time without a request after which a sequence ends.
    :param ingress_replicas: processes that read and write the bodies of HTTP, on Ray's head node.

    Applications that are run again under their name replace the replicas one after the other. Their sequences go on
    if the weights are the same, and else end with :class:`SequenceError`.
    """
    if not models:
        raise InputError("there are no models")
    if INGRESS in models:
        raise InputError(f"a model cannot have the name {INGRESS}, which is that of the deployment for HTTP")
    router: Any = SequenceRouter
    is_scaled = isinstance(num_replicas, AutoscalingConfig)
    replicas: dict[str, Any] = {"autoscaling_config" if is_scaled else "num_replicas": num_replicas}
    handles = {}
    for name, model in models.items():
        deployed = serve.deployment(
            name=name,
            ray_actor_options={"num_cpus": num_cpus},
            request_router_config=RequestRouterConfig(request_router_class=router),
            max_ongoing_requests=max_ongoing_requests,
            max_queued_requests=max_queued_requests,
            health_check_period_s=5,
            **replicas,
        )(Replica)
        limits = Limits(max_sequences, idle_seconds)
        file = None if plan is None else os.fspath(plan)
        handles[name] = deployed.bind(model, file, dict(engine or {}), int(num_cpus), limits)
    ingress = serve.deployment(
        name=INGRESS,
        num_replicas=ingress_replicas,
        # Where the states are: the death of another node then takes no request with it on its way.
        ray_actor_options={"num_cpus": 0, "resources": {HEAD: 0.001}},
        max_ongoing_requests=max_ongoing_requests,
    )(Ingress)
    return ingress.bind(handles)
