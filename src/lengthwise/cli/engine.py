"""`lengthwise engine`: the embedded engine alone, and `lengthwise engine fit`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli import engine_fit
from lengthwise.cli.model_options import options_from, validated
from lengthwise.cli.output import need_folder
from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.errors import InputError

app = typer.Typer(rich_markup_mode="markdown")
app.command()(engine_fit.fit)


@app.callback(invoke_without_command=True)
@options_from(
    EngineOptions,
    without=["warm_predictor", "plugin", "compiled", "extra", "plugin_options", "pace"],
    defaults={"port": 8000},
)
def engine(
    context: typer.Context,
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM, without our scheduler.")] = False,
    steps: Annotated[Path | None, typer.Option("--steps", help="Write every step to this file (Parquet).")] = None,
    **fields: Any,  # noqa: ANN401
) -> None:
    """Run the embedded engine: vLLM with our scheduler inside, an OpenAI API on loopback.

    Without --model it serves SmolLM2-135M-Instruct, converted once into the user's cache directory, where its log is
    too. Ctrl-C stops it and everything it started.

    Example: `lengthwise engine --policy srpt:c=0.8 --probe default --port 8000`
    """
    if context.invoked_subcommand is not None:
        return
    for option, value in (("--steps", steps), ("--probe", fields["probe"])):
        if value is not None and stock:
            raise InputError(f"{option} with --stock", hint="it needs our scheduler: leave out one of them")
    need_folder(steps, "--steps")
    plugin_options = {} if steps is None else {"steps": str(steps.resolve())}
    options = validated(EngineOptions, plugin=not stock, plugin_options=plugin_options, **fields)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is stopped on the way out
    typer.echo("starting vLLM (half a minute on a CPU) ...", err=True)
    with EmbeddedEngine(options) as running:
        order = "policy fcfs (stock)" if stock else f"policy {options.policy}, predictor {options.predictor}"
        order += "" if options.probe is None else f", probe {options.probe}"
        typer.echo(f"engine ready at {running.url}/v1, {order}; log {running.log}")
        try:
            signal.pause()
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)
