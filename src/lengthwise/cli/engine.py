"""`lengthwise engine`: just the embedded engine."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.predictors.service import DEFAULT_PREDICTOR

Policy = Annotated[str, typer.Option("--policy", help="Order of waiting requests in the engine (docs/policies.md).")]
Predictor = Annotated[
    str, typer.Option("--predictor", help="What predicts lengths: fast, default, none, or a model file (.lw).")
]
Seqs = Annotated[int, typer.Option("--max-num-seqs", min=1, help="Requests that run at once inside the engine.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A model folder or hub name instead of the embedded SmolLM2-135M."),
]


def engine(
    policy: Policy = "lengthwise",
    predictor: Predictor = DEFAULT_PREDICTOR,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 for any free port.")] = 8000,
    model: Model = None,
    max_num_seqs: Seqs = 16,
    max_model_len: Annotated[int, typer.Option(min=16, help="Context, prompt and answer together.")] = 2048,
    stock: Annotated[bool, typer.Option("--stock", help="vLLM as it is, without our scheduler.")] = False,
) -> None:
    """Run the embedded engine: vLLM with our scheduler inside, an OpenAI API on loopback.

    Without --model it serves SmolLM2-135M-Instruct, converted once into the user's cache directory. Its log is kept
    beside it. Ctrl-C stops it and everything it started.

    Example: `lengthwise engine --policy sjf --port 8000`
    """
    options = EngineOptions(policy, predictor, host, port, model, max_num_seqs, max_model_len, plugin=not stock)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is stopped on the way out
    typer.echo("starting vLLM (half a minute on a CPU) ...", err=True)
    with EmbeddedEngine(options) as running:
        order = "policy fcfs (stock)" if stock else f"policy {policy}, predictor {predictor}"
        typer.echo(f"engine ready at {running.url}/v1, {order}; log {running.log}")
        try:
            signal.pause()
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)
