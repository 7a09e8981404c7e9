"""`lengthwise serve`: the gateway in front of the embedded engine or of given engines."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import SecretStr

from lengthwise.cli.model_options import given_fields, options_from, retired_options, validated
from lengthwise.cli.output import Wait
from lengthwise.client.client import without_credentials
from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig, bind, check_engines, run_gateway
from lengthwise.gateway.config import DEFAULT_TENANT, RETIRED, EngineConfig, read_config
from lengthwise.gateway.keys import read_keys
from lengthwise.gateway.reload import EarlyHangup
from lengthwise.gateway.server import tls_context, url_of
from lengthwise.gateway.tenants import Tenants

_RETIRED = {
    "--workers": "is gone; run several gateways behind a load balancer, or Ray Serve (docs/guides/cluster.md)",
    **retired_options(RETIRED),
}
_EMBEDDED = "http://127.0.0.1"  # replaced by the address of the embedded engine


PANELS: Final = {
    "Order and prediction": (
        "policy", "router", "predictor", "learning", "state", "watch", "share_learning", "in_flight",
        "admission_quantile", "stream_usage",
    ),
    "Address": ("host", "port", "tls_certificate", "tls_key", "tls_in_front"),
    "Logs": ("log", "log_bytes", "keep_prompts", "observe", "access_log", "audit_log", "otlp_endpoint"),
    "Access": (
        "keys", "require_keys", "shared_secret", "admin_token", "remote_control", "engine_hosts", "internet",
        "extra_paths",
    ),
    "Limits": (
        "max_waiting", "max_body_bytes", "max_held_bytes", "max_header_bytes", "max_connections",
        "max_connections_per_address", "enforce_deadlines",
    ),
    "Timeouts": (
        "header_timeout_s", "body_timeout_s", "write_timeout_s", "silence_timeout_s", "first_byte_timeout_s",
        "queue_timeout_s", "request_timeout_s", "hold_timeout_s", "connect_timeout_s", "drain_s", "shutdown_timeout_s",
    ),
    "Failing engines": (
        "retries", "resend", "retry_share", "breaker_failures", "breaker_s", "health_interval_s", "health_failures",
        "health_successes",
    ),
}  # fmt: skip
"""The options by group, in the order of the help."""


@options_from(
    GatewayConfig,
    without=["engines", "models", "classes", "tenants"],
    environment="LENGTHWISE_SERVE_",
    panels=PANELS,
    retired=_RETIRED,
)
def serve(
    context: typer.Context,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible engine, or `simulated:4*llama-3-8b@a100`; may be given more than once.",
            envvar="LENGTHWISE_SERVE_ENGINE",
            show_envvar=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with engines, models, tenants and any option below (docs/guides/fleet.yaml).",
            envvar="LENGTHWISE_SERVE_CONFIG",
            show_envvar=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Validate options and file, and exit: 0 or 2.")] = False,
    wait: Wait = 0.0,
    **_: Any,
) -> None:
    """Serve the OpenAI API in front of one or more engines; requests wait in the order of a policy.

    Without an engine, the embedded one is started: a small LLM on vLLM with our scheduler inside. `simulated:FLEET`
    starts engines of the simulator in real time: load tests and first looks without a GPU. A dashboard is at / of the
    gateway (docs/guides/dashboard.md).

    Options override the file. An option that is not given is read from the environment: `--in-flight` from
    `LENGTHWISE_SERVE_IN_FLIGHT`, and so on.

    Example: `lengthwise serve --engine http://gpu-1:8000 --engine http://gpu-2:8000 --policy sjf`

    Example: `lengthwise serve --config fleet.yaml --check`

    Example: `lengthwise serve --engine http://gpu-1:8000 --observe --log traffic/`
    """
    token = SecretStr(secrets.token_urlsafe(32))
    options = given_fields(context, GatewayConfig) | ({"engines": engine} if engine else {})

    def load() -> GatewayConfig:
        """Return the configuration; options are checked alone first, so that an error names the option or the file."""
        defaults = {"engines": [_EMBEDDED]}
        alone = validated(GatewayConfig, **(defaults | options))
        loaded = alone if config is None else read_config(config, overrides=options, defaults=defaults)
        Tenants(loaded)
        tls_context(loaded)
        return loaded if loaded.admin_token is not None else loaded.model_copy(update={"admin_token": token})

    # Everything is checked, and the port is taken, before an engine is started.
    settings = load()
    _need_a_key(settings)
    for warning in _warnings(settings):
        typer.echo(f"warning: {warning}", err=True)
    if check:
        typer.echo(f"valid: {_summary(settings)}")
        return
    EarlyHangup.handle()  # before engines start, which may take minutes
    with contextlib.closing(bind(settings.host, settings.port)) as sock, _started(settings) as resolved:
        settings = resolved(settings)
        for down in check_engines([each.url for each in settings.engines], wait_s=wait):
            typer.echo(f"warning: engine {down} does not answer; it gets requests once it does", err=True)
        typer.echo(f"starting the gateway with the predictor {settings.predictor} ...", err=True)
        url = url_of(sock, settings.host, tls=settings.tls_certificate is not None)
        ready = f"serving on {url} in front of {_summary(settings)}"
        if settings.keys is None and settings.admin_token == token:
            ready += f"\ndashboard with the admin token of this run: {url}/#token={token.get_secret_value()}"
        run_gateway(
            settings,
            sock,
            on_ready=lambda: typer.echo(ready),
            on_engines=typer.echo,
            load=lambda: resolved(load()),
        )
    if settings.observe:
        typer.echo(f"log: {settings.log}; what another order would have gained: lengthwise report {settings.log}")


def _need_a_key(config: GatewayConfig) -> None:
    """Raise InputError if keys are required and the file has none: every request would be refused."""
    path = config.keys
    if path is not None and config.require_keys and not any(tenant.keys for tenant in read_keys(path).tenants):
        raise InputError("holds no key", source=path, hint=f"run: lengthwise keys add TENANT --keys {path}")


def _warnings(config: GatewayConfig) -> Iterator[str]:
    """Yield what is allowed and seldom meant."""
    if unused := _tenants_without_key(config):
        yield f"without a key no request belongs to {', '.join(unused)}"
    if config.keys is None and _is_open(config.host):
        yield f"{config.host} is open to other machines and no key is needed; make keys with `lengthwise keys add`"
    if config.observe:
        yield "observing needs streamed answers: what a policy would gain is known of requests with `stream: true` only"


def _is_open(host: str) -> bool:
    """Whether other machines reach an address; of a name that is not known before it is looked up."""
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return False


def _tenants_without_key(config: GatewayConfig) -> list[str]:
    stored = () if config.keys is None else read_keys(config.keys).tenants
    return sorted(config.tenants.keys() - {tenant.name for tenant in stored if tenant.keys} - {DEFAULT_TENANT})


def _summary(config: GatewayConfig) -> str:
    named = [
        f"{engine.name or f'engine-{number}'} {without_credentials(engine.url)}"
        for number, engine in enumerate(config.engines)
        if engine.url != _EMBEDDED
    ]
    router = f", router {config.chosen_router}" if config.chosen_router else ""
    engines = ", ".join(named) or "the embedded engine"
    policy = Tenants(config).policy(config.policy).name
    return f"{engines}, policy {policy}{router}, predictor {config.predictor}"


@contextlib.contextmanager
def _started(config: GatewayConfig) -> Iterator[Callable[[GatewayConfig], GatewayConfig]]:
    """Start the engines that run as long as the gateway; yield a function that puts their URLs into a configuration."""
    with contextlib.ExitStack() as stack:
        started = {
            each: _embedded(config, stack) if each.url == _EMBEDDED else _simulated(each, stack)
            for each in config.engines
            if each.simulated or each.url == _EMBEDDED
        }

        def resolved(settings: GatewayConfig) -> GatewayConfig:
            own = {each for each in settings.engines if each.simulated or each.url == _EMBEDDED}
            if own - started.keys():
                raise InputError("simulated and embedded engines start with the gateway only", hint="restart it")
            engines = tuple(one for each in settings.engines for one in started.get(each, [each]))
            return settings.model_copy(update={"engines": engines})

        yield resolved


def _embedded(config: GatewayConfig, stack: contextlib.ExitStack) -> list[EngineConfig]:
    from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions

    typer.echo(
        "starting the embedded engine (vLLM loads and compiles its model: a minute, at the first start some) ...",
        err=True,
    )
    # The gateway forwards its predictions: the engine's predictor process starts at the first request without one.
    options = EngineOptions(
        policy=config.policy,
        predictor=config.predictor,
        learning=config.learning,
        state=config.state,
        warm_predictor=False,
    )
    return [EngineConfig(url=stack.enter_context(EmbeddedEngine(options)).url, kind="lengthwise")]


def _simulated(engine: EngineConfig, stack: contextlib.ExitStack) -> list[EngineConfig]:
    """Return the simulated engines that a specification stands for; they run until the stack is closed."""
    from lengthwise.client.simulated_server import SimulatedEngines

    typer.echo(f"starting {without_credentials(engine.url)} ...", err=True)
    urls = stack.enter_context(SimulatedEngines(engine.url)).urls
    names = [engine.name if engine.name is None or len(urls) == 1 else f"{engine.name}-{n}" for n in range(len(urls))]
    return [engine.model_copy(update={"url": url, "name": name}) for url, name in zip(urls, names, strict=True)]
