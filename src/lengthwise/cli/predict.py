"""`lengthwise predict`."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lengthwise.errors import InputError
from lengthwise.lengths import BaseDistribution
from lengthwise.llm_names import UNKNOWN
from lengthwise.predictors.castillo_api import BIN_WIDTH, P99, p99_class, repeated_answers
from lengthwise.predictors.contract import PredictionInput, Predictions
from lengthwise.predictors.resolve import best_packaged, resolve_predictor

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BETAS = (0.1, 0.2, 0.3, 0.4, 0.5)
_WIDTH = 56


def _refuse(given: bool) -> None:
    if given:
        raise InputError("is gone", source="--explain", hint="give --details")


def predict(
    text: Annotated[str, typer.Argument(help="The prompt; `-` reads it from standard input.")],
    llm: Annotated[
        str | None,
        typer.Option(
            help="The LLM that answers; a short name such as llama-3.2-3B is enough [default: an unknown LLM]."
        ),
    ] = None,
    predictor: Annotated[
        str | None,
        typer.Option(help="A packaged predictor, a model file or a dotted path [default: the best packaged one]."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The limit of the answer in tokens.", min=1)] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also show quantiles, the P99 class and the scores of the policy TIE.")
    ] = False,
    bin_width: Annotated[int, typer.Option(help="With --details: width of a P99 class in tokens.", min=1)] = BIN_WIDTH,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    _explain: Annotated[bool, typer.Option("--explain", hidden=True, callback=_refuse)] = False,
) -> None:
    """Predict the length of an LLM's answer to a prompt, as a distribution.

    The mean is that of repeated answers to the prompt; interval and P99 are those of one answer, with the
    predictor's uncertainty in them.

    Example: `lengthwise predict "Introduce Nanjing University in China." --llm llama-3.2-3B`
    """
    prompt = sys.stdin.read() if text == "-" else text
    name = best_packaged() if predictor is None else predictor
    model = resolve_predictor(name)
    if llm is None and (known := getattr(model, "llms", ())):
        typer.echo(f"predicted for an unknown LLM; --llm is more accurate with one of {', '.join(known)}", err=True)
    predictions = model.predict([PredictionInput(prompt, llm or UNKNOWN, max_tokens=max_tokens)])
    found = _facts(predictions)
    more = _details(predictions, bin_width) if details else {}
    if as_json:
        typer.echo(json.dumps({"llm": llm, "predictor": name, **found, **more}, indent=2))
        return
    console = Console(markup=False, highlight=False)
    console.print(_table(found, more))
    for line in _interval(found["quantiles"]):
        console.print(line, soft_wrap=True)


def _facts(predictions: Predictions) -> dict[str, Any]:
    prediction = predictions[0]
    return {
        "mean": min(repeated_answers(predictions)[0], float(prediction.cap)),
        "p99": prediction.quantile(P99),
        "quantiles": {f"{q:g}": prediction.quantile(q) for q in QUANTILES},
    }


def _details(predictions: Predictions, bin_width: int) -> dict[str, Any]:
    prediction = predictions[0]
    found = {
        "std": repeated_answers(predictions)[1],
        "expected": prediction.mean(),
        "expected_std": prediction.std(),
        **p99_class(prediction.quantile(P99), bin_width),
    }
    if isinstance(prediction, BaseDistribution):
        mean, cvar = prediction.mean_and_cvar(0.9)
        found["tie"] = {f"{beta:g}": mean + beta * cvar for beta in BETAS}
    return found


def _table(found: dict[str, Any], more: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    low, high = (found["quantiles"][q] for q in ("0.05", "0.95"))
    table.add_row("mean", f"{found['mean']:,.0f} tokens")
    table.add_row("90 % of answers", f"{low:,.0f} to {high:,.0f}")
    table.add_row("P99", f"{found['p99']:,.0f}")
    if more:
        table.add_row("std of repeated answers", f"{more['std']:,.0f}")
        quantiles = ", ".join(f"{float(q):.0%} {tokens:,.0f}" for q, tokens in found["quantiles"].items())
        table.add_row("answers within", quantiles)
        expected = f"{more['expected']:,.0f}, std {more['expected_std']:,.0f}: its uncertainty included"
        table.add_row("expected by policies", expected)
        first, end = more["predicted_p99_range"]
        table.add_row("P99 class", f"{more['predicted_p99_class']}: {first:,} to {end:,}")
    if "tie" in more:
        table.add_row("TIE by beta", ", ".join(f"{beta}: {score:,.0f}" for beta, score in more["tie"].items()))
    return table


def _interval(quantiles: dict[str, float]) -> list[str]:
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
    drawn = f"{low:,.0f} |{''.join(line)}| {high:,.0f}"
    return [drawn, "tokens, log scale: 90 % of answers (-), 50 % (=), median (#)"]
