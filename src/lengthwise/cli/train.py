"""`lengthwise train`: train a predictor from a YAML configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.output import need_folder
from lengthwise.errors import InputError
from lengthwise.training.encoder.config import read_config


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
    try:
        from lengthwise.training.encoder.package import write_predictor
        from lengthwise.training.encoder.run import load_weights, prepare
        from lengthwise.training.encoder.run import train as train_all
    except ModuleNotFoundError as error:
        raise InputError(f"training needs {error.name}", hint="pip install 'lengthwise[train]'") from error
    prepared = prepare(settings)
    if weights is not None:
        network = load_weights(prepared, weights)
    else:
        network = train_all(prepared, path.with_suffix(".training"), resume=resume, progress=_print_row)
    card = write_predictor(path, prepared, network, progress=lambda line: typer.echo(line, err=True))
    for part, figures in card["figures"].items():
        typer.echo(f"{part}: {_line(figures)}")
    typer.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def _print_row(name: str, row: dict[str, Any]) -> None:
    typer.echo(f"{name}  {_line(row)}", err=True)


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{key} {value:g}" for key, value in row.items())
