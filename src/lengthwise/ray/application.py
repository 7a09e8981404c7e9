"""`lengthwise.ray:app`, a Ray Serve application: the gateway as ingress in front of engines as replicas.

    serve run lengthwise.ray:app engine=simulated:1*llama-3-8b@a100 replicas=3
    serve run lengthwise.ray:app model=meta-llama/Llama-3.1-8B-Instruct replicas=4

The ingress predicts lengths and orders waiting requests, the deployment's request router chooses the replica, and the
scheduler in each replica orders by the same prediction.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import RequestRouterConfig
from starlette.applications import Starlette

from lengthwise.defaults import DEFAULT_POLICY, DEFAULT_PREDICTOR, DEFAULT_ROUTER, DEFAULT_SLOTS
from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig, create_app
from lengthwise.ray.replicas import EngineReplica, HandleClient
from lengthwise.ray.request_router import LengthwiseRequestRouter
from lengthwise.routers import make_router
from lengthwise.settings import validated
from lengthwise.simulator.live import SCHEME, SimulatedFleet
from lengthwise.vllm.embedded import EngineOptions

ENGINE: Final = "engine"
"""Name of the engines' deployment; the ingress is `gateway`."""

_SOURCE: Final = "lengthwise.ray:app"  # of wrong arguments
_NO_ADDRESS: Final = "http://engine.invalid"  # replicas have no URL; this top-level domain is reserved (RFC 2606)
_UNLIMITED: Final = 1 << 20  # the gateway limits its requests itself (max_waiting)
_CONTROL_CALLS: Final = 8  # health checks and lists of models, beside the requests in slots
_HEALTH_S: Final = 2.0
_STATS_S: Final = 2.0


class ServeOptions(BaseModel):
    """Arguments of the application: `args` in serve.yaml, or NAME=VALUE behind `serve run lengthwise.ray:app`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    engine: str = "vllm"
    """What a replica is: `vllm`, or one simulated engine such as `simulated:1*llama-3-8b@a100`."""
    model: str | None = None
    """LLM of vLLM: a folder on every node, or a hub name; without it the embedded SmolLM2-135M."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Replicas of the engine."""
    autoscaling: dict[str, Any] | None = None
    """`autoscaling_config` of Ray Serve, in place of a fixed number of replicas."""
    gpus: Annotated[float, Field(ge=0)] | None = None
    """GPUs of a replica; 1 for vLLM with a `model`, else none."""
    cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs that Ray reserves for a replica."""
    ingress_replicas: Annotated[int, Field(ge=1)] = 1
    """Replicas of the gateway. Each has its own queue, router and predictor."""
    ingress_cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs that Ray reserves for a replica of the gateway, which runs its predictor in a process of its own."""
    in_flight: Annotated[int, Field(ge=1)] = DEFAULT_SLOTS
    """Requests that run at once on one replica; the others wait in the gateway, in the policy's order."""
    policy: str = DEFAULT_POLICY
    """Order of waiting requests, in the gateway and in vLLM (docs/reference/policies.md)."""
    router: str = DEFAULT_ROUTER
    """Choice of a replica (docs/reference/routing.md)."""
    predictor: str = DEFAULT_PREDICTOR
    """Length predictor of the gateway; its prediction is sent to the replica."""
    vllm: dict[str, Any] = {}
    """Options of `lengthwise engine` for vLLM replicas: max_num_seqs, max_model_len, extra and so on."""
    gateway: dict[str, Any] = {}
    """Fields of the gateway's configuration: tenants, keys, timeouts and so on (docs/guides/gateway.md)."""

    @classmethod
    def of(cls, args: dict[str, Any]) -> Self:
        """Return validated arguments; InputError names the one that is wrong."""
        return validated(cls, args, source=_SOURCE)

    @property
    def simulated(self) -> str | None:
        """The specification of the simulated engine; None for vLLM."""
        if not self.engine.startswith(SCHEME):
            if self.engine != "vllm":
                raise InputError(f"engine '{self.engine}'", hint=f"give vllm, or {SCHEME}1*llama-3-8b@a100")
            return None
        if len(SimulatedFleet.parse(self.engine).engines) != 1:
            raise InputError(f"engine '{self.engine}' is several", hint="give one engine, and `replicas`")
        return self.engine

    @property
    def engine_options(self) -> EngineOptions:
        """How vLLM is started in a replica. Its own predictor starts only if a request brings no prediction."""
        own = {"policy": self.policy, "predictor": self.predictor, "warm_predictor": False}
        return validated(EngineOptions, {**own, "model": self.model, **self.vllm}, source=_SOURCE, section="vllm")

    @property
    def gateway_config(self) -> GatewayConfig:
        """The configuration of the ingress: one engine, which is the deployment."""
        engine = {"url": _NO_ADDRESS, "name": ENGINE, "kind": "lengthwise", "in_flight": self.in_flight}
        own = {"policy": self.policy, "predictor": self.predictor, "admission_quantile": 0.0}
        return validated(GatewayConfig, {**own, **self.gateway, "engines": [engine]}, source=_SOURCE, section="gateway")


@serve.ingress()
class Gateway:
    """The gateway's ASGI application with the deployment of engines as its only engine."""

    def __init__(self, engines: Any, args: dict[str, Any]) -> None:  # a DeploymentHandle
        self._engines = engines
        self._config = ServeOptions.of(args).gateway_config

    def __serve_build_asgi_app__(self) -> Starlette:
        return create_app(self._config, make_client=partial(HandleClient, self._engines))


def app(args: dict[str, Any]) -> Any:  # a Ray Serve Application
    """Return the application; `args` are `ServeOptions`."""
    options = ServeOptions.of(args)
    make_router(options.router)
    simulated, engine_options, _ = options.simulated, options.engine_options, options.gateway_config
    gpus = options.gpus if options.gpus is not None else float(simulated is None and options.model is not None)
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.autoscaling is not None:
        scale = {"autoscaling_config": options.autoscaling}
    engines = serve.deployment(
        EngineReplica,
        name=ENGINE,
        max_ongoing_requests=options.in_flight + _CONTROL_CALLS,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": gpus},
        request_router_config=RequestRouterConfig(
            request_router_class=f"{LengthwiseRequestRouter.__module__}:{LengthwiseRequestRouter.__qualname__}",
            request_router_kwargs={"router": options.router},
            request_routing_stats_period_s=_STATS_S,
        ),
        health_check_period_s=_HEALTH_S,
        **scale,
    )
    ingress = serve.deployment(
        Gateway,
        name="gateway",
        num_replicas=options.ingress_replicas,
        ray_actor_options={"num_cpus": options.ingress_cpus},
        max_ongoing_requests=_UNLIMITED,
    )
    return ingress.bind(engines.bind(simulated, engine_options.model_dump(mode="json")), options.model_dump())
