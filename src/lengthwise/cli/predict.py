"""`lengthwise predict`."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lengthwise.lengths import BaseDistribution
from lengthwise.predictors.castillo_api import BIN_WIDTH, p99_class
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.resolve import resolve_predictor

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
BETAS = (0.1, 0.2, 0.3, 0.4, 0.5)
_WIDTH = 56


def predict(
    text: Annotated[str, typer.Argument(help="The prompt; `-` reads it from standard input.")],
    llm: Annotated[str, typer.Option(help="The LLM that answers; a short name such as llama-3.2-3B is enough.")],
    predictor: Annotated[str, typer.Option(help="A packaged predictor, a model file or a dotted path.")] = "fast",
    bin_width: Annotated[int, typer.Option(help="Width of a P99 class in tokens.", min=1)] = BIN_WIDTH,
    max_tokens: Annotated[int | None, typer.Option(help="The limit of the answer in tokens.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Predict the length of an LLM's answer to a prompt, as a distribution.

    Example: `lengthwise predict "Introduce Nanjing University in China." --llm llama-3.2-3B`
    """
    prompt = sys.stdin.read() if text == "-" else text
    predictions = resolve_predictor(predictor).predict([PredictionInput(prompt, llm, max_tokens=max_tokens)])
    prediction = predictions[0]
    found = _facts(prediction, float(predictions.sample_mean[0]), float(predictions.sample_std[0]), bin_width)
    if as_json:
        typer.echo(json.dumps({"llm": llm, "predictor": predictor, **found}, indent=2))
        return
    console = Console(markup=False, highlight=False)
    console.print(_table(found))
    console.print(_interval(found["quantiles"]))


def _facts(prediction: Any, mean: float, std: float, bin_width: int) -> dict[str, Any]:  # noqa: ANN401
    if not math.isfinite(mean + std):
        mean, std = prediction.mean(), prediction.std()
    facts: dict[str, Any] = {
        "mean": mean,
        "std": std,
        "prediction_mean": prediction.mean(),
        "prediction_std": prediction.std(),
        "quantiles": {f"{q:g}": prediction.quantile(q) for q in QUANTILES},
        **p99_class(mean, std, bin_width),
    }
    if isinstance(prediction, BaseDistribution):
        mean, cvar = prediction.mean_and_cvar(0.9)
        facts["tie"] = {f"{beta:g}": mean + beta * cvar for beta in BETAS}
    return facts


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    low, high = found["predicted_p99_range"]
    table.add_row("mean of repeated answers", f"{found['mean']:,.0f} tokens")
    table.add_row("std of repeated answers", f"{found['std']:,.0f}")
    table.add_row("mean of the prediction", f"{found['prediction_mean']:,.0f}, std {found['prediction_std']:,.0f}")
    for q, tokens in found["quantiles"].items():
        table.add_row(f"{float(q):.0%} of answers within", f"{tokens:,.0f}")
    table.add_row("P99 class", f"{found['predicted_p99_class']}: {low:,} to {high:,}")
    if "tie" in found:
        scores = ", ".join(f"{score:,.0f} (beta {beta})" for beta, score in found["tie"].items())
        table.add_row("TIE score", scores)
    return table


def _interval(quantiles: dict[str, float]) -> str:
    """Draw the 90 % interval on a log scale, the 50 % one thick, the median marked."""
    low, high = 10.0 ** math.floor(math.log10(quantiles["0.05"])), 10.0 ** math.ceil(math.log10(quantiles["0.95"] + 1))
    ends = [
        round(math.log(max(quantiles[q], low) / low) / math.log(high / low) * (_WIDTH - 1))
        for q in ("0.05", "0.25", "0.5", "0.75", "0.95")
    ]
    line = [
        "#" if place == ends[2] else "=" if ends[1] <= place <= ends[3] else "-" if ends[0] <= place <= ends[4] else " "
        for place in range(_WIDTH)
    ]
    return f"{low:,.0f} |{''.join(line)}| {high:,.0f}   90 % (-), 50 % (=), median (#), log scale"
