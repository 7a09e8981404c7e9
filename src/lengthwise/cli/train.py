"""`lengthwise train`: train a predictor from a YAML configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.output import need_folder
from lengthwise.reports.progress import late_bar
from lengthwise.training.encoder.config import TrainingConfig, read_config


def train(
    config: Annotated[Path, typer.Argument(help="YAML configuration, e.g. configs/default.yaml.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Model file to write; NAME.lw by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoints.")] = False,
    weights: Annotated[
        Path | None, typer.Option(help="Export these weights (scripts/gpu_train.py join) instead of training.")
    ] = None,
) -> None:
    """Train an encoder predictor and write it as one model file.

    Checkpoints and loss curves (JSON lines) are written to a folder beside the model file, for --resume.

    Example: `lengthwise train configs/default.yaml -o default.lw`
    """
    settings = read_config(config)
    path = Path(f"{settings.name}.lw") if out is None else out
    need_folder(path, "--out")
    from lengthwise.training.encoder.package import write_predictor
    from lengthwise.training.encoder.run import load_weights, prepare
    from lengthwise.training.encoder.run import train as train_all

    with late_bar() as bar:
        prepared = prepare(settings)
        if weights is not None:
            network = load_weights(prepared, weights)
        else:
            rows = _Rows(settings, bar)
            network = train_all(prepared, path.with_suffix(".training"), resume=resume, progress=rows.show)
        card = write_predictor(path, prepared, network, progress=lambda line: typer.echo(line, err=True))
    for part, figures in card["figures"].items():
        typer.echo(f"{part}: {_line(figures)}")
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


class _Rows:
    """Prints the figures of each epoch and moves the bar; a training that stops early ends before its last epoch."""

    def __init__(self, config: TrainingConfig, bar: Callable[[str, float], None]) -> None:
        self._epochs = config.optimiser.epochs + config.optimiser.head_epochs
        self._runs = len(config.seeds) + (config.distil is not None and len(config.seeds) > 1)
        self._bar = bar
        self._names: list[str] = []

    def show(self, name: str, row: dict[str, Any]) -> None:
        """Take the figures of an epoch."""
        if name not in self._names:
            self._names.append(name)
        typer.echo(f"{name}  {_line(row)}", err=True)
        done = len(self._names) - 1 + min(1.0, row["epoch"] / self._epochs)
        self._bar(f"{name}, epoch {row['epoch']}", min(1.0, done / self._runs))


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{key} {value:g}" for key, value in row.items())
