"""`lengthwise engine`: just the embedded engine; `lengthwise engine fit` is beside it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli import engine_fit
from lengthwise.cli.output import need_folder
from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.errors import InputError
from lengthwise.predictors.service import DEFAULT_PREDICTOR

Policy = Annotated[
    str, typer.Option("--policy", help="Order of waiting requests in the engine (docs/reference/policies.md).")
]
Predictor = Annotated[
    str, typer.Option("--predictor", help="What predicts lengths: fast, default, none, or a model file (.lw).")
]
Seqs = Annotated[int, typer.Option("--max-num-seqs", min=1, help="Requests that run at once inside the engine.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A model folder or hub name instead of the embedded SmolLM2-135M."),
]


app = typer.Typer(rich_markup_mode="markdown")
app.command()(engine_fit.fit)


@app.callback(invoke_without_command=True)
def engine(
    context: typer.Context,
    policy: Policy = "lengthwise",
    predictor: Predictor = DEFAULT_PREDICTOR,
    probe: Annotated[
        str | None,
        typer.Option(
            "--probe", help="Refine predictions by the LLM's hidden states: default, or a probe's file (.lw)."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 for any free port.")] = 8000,
    model: Model = None,
    max_num_seqs: Seqs = 16,
    max_model_len: Annotated[int, typer.Option(min=16, help="Context, prompt and answer together.")] = 2048,
    stock: Annotated[bool, typer.Option("--stock", help="vLLM as it is, without our scheduler.")] = False,
    steps: Annotated[Path | None, typer.Option("--steps", help="Write every step to this file (Parquet).")] = None,
) -> None:
    """Run the embedded engine: vLLM with our scheduler inside, an OpenAI API on loopback.

    Without --model it serves SmolLM2-135M-Instruct, converted once into the user's cache directory. Its log is kept
    beside it. Ctrl-C stops it and everything it started.

    Example: `lengthwise engine --policy srpt:c=0.8 --probe default --port 8000`
    """
    if context.invoked_subcommand is not None:
        return
    if steps is not None and stock:
        raise InputError("--steps with --stock", hint="steps are written by our scheduler: leave out one of them")
    if probe is not None and stock:
        raise InputError("--probe with --stock", hint="a probe is read by our scheduler: leave out one of them")
    need_folder(steps, "--steps")
    options = EngineOptions(
        policy,
        predictor,
        host,
        port,
        model,
        max_num_seqs,
        max_model_len,
        probe=probe,
        plugin=not stock,
        plugin_options={} if steps is None else {"steps": str(steps.resolve())},
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is stopped on the way out
    typer.echo("starting vLLM (half a minute on a CPU) ...", err=True)
    with EmbeddedEngine(options) as running:
        order = "policy fcfs (stock)" if stock else f"policy {policy}, predictor {predictor}"
        order += "" if probe is None else f", probe {probe}"
        typer.echo(f"engine ready at {running.url}/v1, {order}; log {running.log}")
        try:
            signal.pause()
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)
