"""`lengthwise serve`: the gateway in front of the embedded engine or of given engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import given_fields, options_from, validated
from lengthwise.cli.output import Wait
from lengthwise.client.client import without_credentials
from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig, bind, check_engines, run_gateway
from lengthwise.gateway.config import DEFAULT_TENANT, EngineConfig, read_config
from lengthwise.gateway.keys import read_keys
from lengthwise.gateway.reload import EarlyHangup
from lengthwise.gateway.server import tls_context, url_of
from lengthwise.gateway.tenants import Tenants

_RETIRED = {"--workers": "is gone; run several gateways behind a load balancer, or Ray Serve (docs/guides/cluster.md)"}
_EMBEDDED = "http://127.0.0.1"  # replaced by the address of the embedded engine


@options_from(
    GatewayConfig, without=["engines", "models", "tenants"], environment="LENGTHWISE_SERVE_", retired=_RETIRED
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

    Example: `lengthwise serve --engine http://gpu-1:8000 --observe --learn traffic/`
    """
    options = given_fields(context, GatewayConfig) | ({"engines": engine} if engine else {})

    def load() -> GatewayConfig:
        """Return the configuration; options are checked alone first, so that an error names the option or the file."""
        defaults = {"engines": [_EMBEDDED]}
        alone = validated(GatewayConfig, **(defaults | options))
        loaded = alone if config is None else read_config(config, overrides=options, defaults=defaults)
        if loaded.keys is not None:
            read_keys(loaded.keys)
        tls_context(loaded)
        return loaded

    # Everything is checked, and the port is taken, before an engine is started.
    settings = load()
    if unused := _tenants_without_key(settings):
        typer.echo(f"warning: without a key no request belongs to {', '.join(unused)}", err=True)
    if check:
        typer.echo(f"valid: {_summary(settings)}")
        return
    EarlyHangup.handle()  # before engines start, which may take minutes
    with contextlib.closing(bind(settings.host, settings.port)) as sock, _started(settings) as resolved:
        settings = resolved(settings)
        for down in check_engines([each.url for each in settings.engines], wait_s=wait):
            typer.echo(f"warning: engine {down} does not answer; it gets requests once it does", err=True)
        url = url_of(sock, settings.host, tls=settings.tls_certificate is not None)
        ready = f"serving on {url} in front of {_summary(settings)}"
        run_gateway(
            settings,
            sock,
            on_ready=lambda: typer.echo(ready),
            on_engines=typer.echo,
            load=lambda: resolved(load()),
        )
    if settings.observe:
        typer.echo(f"log: {settings.learn}; what another order would have gained: lengthwise report {settings.learn}")


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

    typer.echo("starting the embedded engine ...", err=True)
    # The gateway forwards its predictions: the engine's predictor process starts at the first request without one.
    options = EngineOptions(policy=config.policy, predictor=config.predictor, memory="off", warm_predictor=False)
    return [EngineConfig(url=stack.enter_context(EmbeddedEngine(options)).url, kind="lengthwise")]


def _simulated(engine: EngineConfig, stack: contextlib.ExitStack) -> list[EngineConfig]:
    """Return the simulated engines that a specification stands for; they run until the stack is closed."""
    from lengthwise.client.simulated_server import SimulatedEngines

    urls = stack.enter_context(SimulatedEngines(engine.url)).urls
    names = [engine.name if engine.name is None or len(urls) == 1 else f"{engine.name}-{n}" for n in range(len(urls))]
    return [engine.model_copy(update={"url": url, "name": name}) for url, name in zip(urls, names, strict=True)]
