"""`lengthwise serve`: the gateway in front of the embedded engine or of given engines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import options_from, validated
from lengthwise.cli.output import Wait
from lengthwise.engines.client import without_credentials
from lengthwise.gateway import GatewayConfig, bind, check_engines, run_gateway
from lengthwise.gateway.config import EngineConfig
from lengthwise.gateway.server import url_of


@options_from(GatewayConfig, without=["engines", "models", "tenants"])
def serve(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible engine, or `simulated:4*llama-3-8b@a100`; may be given more than once.",
        ),
    ] = None,
    wait: Wait = 0.0,
    **fields: Any,  # noqa: ANN401
) -> None:
    """Serve the OpenAI API in front of one or more engines; requests wait in the order of a policy.

    Without --engine, the embedded engine is started: a small LLM on vLLM with our scheduler inside. `simulated:FLEET`
    starts engines of the simulator, in real time: load tests and first looks without a GPU.

    Example: `lengthwise serve --engine http://gpu-1:8000 --engine http://gpu-2:8000 --policy sjf`
    """
    # Options are checked, and the port is taken, before an engine is started.
    config = validated(GatewayConfig, engines=tuple(engine or ["http://127.0.0.1"]), **fields)
    with contextlib.closing(bind(config.host, config.port)) as sock, _engines(engine or [], config) as engines:
        config = config.model_copy(update=engines)
        for down in check_engines([each.url for each in config.engines], wait_s=wait):
            typer.echo(f"warning: engine {down} does not answer; it gets requests once it does", err=True)
        router = f", router {config.chosen_router}" if config.chosen_router else ""
        named = [
            f"{each.name or f'engine-{number}'} {without_credentials(each.url)}"
            for number, each in enumerate(config.engines)
        ]
        ready = f"serving on {url_of(sock, config.host)} before {', '.join(named)}"
        ready += f", policy {config.policy}{router}, predictor {config.predictor}"
        run_gateway(config, sock, on_ready=lambda: typer.echo(ready))


@contextlib.contextmanager
def _engines(urls: list[str], config: GatewayConfig) -> Iterator[dict[str, Any]]:
    """Yield the changes to the configuration: engines that run as long as the gateway get their URLs."""
    if not urls:
        from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions

        typer.echo("starting the embedded engine ...", err=True)
        # The gateway forwards its predictions: the engine's predictor process starts at the first request without one.
        options = EngineOptions(policy=config.policy, predictor=config.predictor, warm_predictor=False)
        with EmbeddedEngine(options) as engine:
            yield {"engines": (EngineConfig(url=engine.url),), "forward_predictions": True}
        return
    with contextlib.ExitStack() as stack:
        yield {"engines": tuple(one for each in config.engines for one in _started(each, stack))}


def _started(engine: EngineConfig, stack: contextlib.ExitStack) -> list[EngineConfig]:
    """Return an engine, or the simulated engines that it stands for, which run until the stack is closed."""
    if not engine.simulated:
        return [engine]
    from lengthwise.engines.simulated_server import SimulatedEngines

    urls = stack.enter_context(SimulatedEngines(engine.url)).urls
    names = [engine.name if engine.name is None or len(urls) == 1 else f"{engine.name}-{n}" for n in range(len(urls))]
    return [engine.model_copy(update={"url": url, "name": name}) for url, name in zip(urls, names, strict=True)]
