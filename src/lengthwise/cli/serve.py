"""`lengthwise serve`: the gateway before the embedded engine, or before engines of one's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lengthwise.gateway import GatewayConfig


def serve(
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An OpenAI-compatible engine; may be given more than once."),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="The order of waiting requests (docs/reference/policies.md).")
    ] = "lengthwise",
    router: Annotated[
        str | None,
        typer.Option(help="Who chooses among engines (docs/reference/routing.md); lengthwise where there are several."),
    ] = None,
    predictor: Annotated[
        str, typer.Option(help="What predicts lengths: fast, default, none, or a model file (.lw).")
    ] = "fast",
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes any free port.")] = 8080,
    in_flight: Annotated[int, typer.Option(help="Requests that run at once on one engine.")] = 64,
    max_waiting: Annotated[int, typer.Option(help="Requests held at once; one more is refused with 429.")] = 10_000,
    forward_hints: Annotated[
        bool, typer.Option(help="Tell engines expected lengths in vllm_xargs; off where they refuse it.")
    ] = True,
    forward_predictions: Annotated[
        bool | None,
        typer.Option(help="Send predicted lengths to engines that run our scheduler; on for the embedded engine."),
    ] = None,
    stream_usage: Annotated[
        bool, typer.Option(help="Ask engines how long streamed answers were; off where they refuse stream_options.")
    ] = True,
    silence_timeout: Annotated[
        float, typer.Option(help="Seconds an engine may send nothing before a request is given up.")
    ] = 600.0,
    hold_timeout: Annotated[float, typer.Option(help="Seconds a request waits while no engine is up.")] = 30.0,
    remote_control: Annotated[
        bool,
        typer.Option("--remote-control", help="Let others than this machine change the policy."),
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for engines that do not answer yet.")] = 0.0,
) -> None:
    """Serve the OpenAI API before one or more engines, holding and ordering requests by a policy.

    Without --engine, the embedded engine is started: a small LLM on vLLM with our scheduler inside.

    Example: `lengthwise serve --engine http://gpu-1:8000 --engine http://gpu-2:8000 --policy sjf`
    """
    # HTTP takes a second to import, which the other commands need not pay.
    from lengthwise.gateway import GatewayConfig, bind, check_engines, run_gateway

    flags = {
        "policy": policy,
        "router": router,
        "predictor": predictor,
        "host": host,
        "port": port,
        "in_flight": in_flight,
        "max_waiting": max_waiting,
        "forward_hints": forward_hints,
        "forward_predictions": not engine if forward_predictions is None else forward_predictions,
        "stream_usage": stream_usage,
        "silence_timeout_s": silence_timeout,
        "hold_timeout_s": hold_timeout,
        "remote_control": remote_control,
    }
    # Mistakes are told, and the port is taken, before an engine is started for nothing.
    GatewayConfig.from_flags(engines=tuple(engine or ["http://127.0.0.1"]), **flags)
    with contextlib.closing(bind(host, port)) as sock, _engines(engine or [], policy, predictor) as urls:
        config = GatewayConfig.from_flags(engines=tuple(urls), **flags)
        check_engines(config.engines, wait_s=wait)
        at = f"[{host}]" if ":" in host else host
        told = f"serving on http://{at}:{sock.getsockname()[1]} before {', '.join(config.engines)}"
        run_gateway(config, sock, on_ready=lambda: typer.echo(f"{told}, {_chosen(config)}"))


def _chosen(config: GatewayConfig) -> str:
    routed = f", router {config.chosen_router}" if config.chosen_router else ""
    return f"policy {config.policy}{routed}, predictor {config.predictor}"


@contextlib.contextmanager
def _engines(urls: list[str], policy: str, predictor: str) -> Iterator[list[str]]:
    """The engines given, or the embedded one for as long as the gateway runs."""
    if urls:
        yield urls
        return
    with _embedded_engine(policy, predictor) as url:
        yield [url]


@contextlib.contextmanager
def _embedded_engine(policy: str, predictor: str) -> Iterator[str]:
    from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions

    typer.echo("starting the embedded engine ...", err=True)
    # The gateway sends its predictions along, so the engine's predictor process starts only if one is missing.
    with EmbeddedEngine(EngineOptions(policy, predictor, warm_predictor=False)) as engine:
        yield engine.url
