"""`lengthwise reproduce alpaca20`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.alpaca20.run import write_predictions
from experiments.alpaca20.study import compare, load_predictions
from experiments.alpaca20.train import train_here
from experiments.alpaca20.view import html_report, plain, tables
from lengthwise.cli.output import need_folder, show
from lengthwise.training.encoder.config import read_config
from lengthwise.workloads.datasets import load_alpaca_lengths


def alpaca20(
    predictions: Annotated[
        Path | None,
        typer.Option(help="Train nothing, score this file (of scripts/gpu_alpaca20.py or --save)."),
    ] = None,
    config: Annotated[Path, typer.Option(help="Settings to train by.")] = Path("configs/alpaca20.yaml"),
    limit: Annotated[
        int, typer.Option(min=0, help="Train, watch and test on so many prompts each only; 0 for all.")
    ] = 0,
    start: Annotated[
        Path | None, typer.Option(help="Start from the encoder of these weights (weights.pt of `lengthwise train`).")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Keep what was predicted here, for --predictions.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report with pictures here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """MiniLM, 20 bins, Alpaca-52k, split 60/20/20: table 1 of length-aware Preble's appendix, ours beside it.

    Trains here, on a GPU where there is one, and says first how long that will take; on a CPU that is hours, so try
    --limit. Alpaca is for non-commercial use: weights are not kept.

    Example: `lengthwise reproduce alpaca20 --predictions alpaca20.npz --report alpaca20.html`
    """
    need_folder(report)
    need_folder(save, "--save")
    if predictions is not None:
        made = load_predictions(predictions)
    else:
        made = train_here(
            read_config(config), limit=limit, start=start, progress=lambda line: typer.echo(line, err=True)
        )
    if save is not None:
        write_predictions(save, made)
    found = compare(made, load_alpaca_lengths(), source=str(predictions or "the training"))
    show(found, tables, plain, html_report, report=report, as_json=as_json)
