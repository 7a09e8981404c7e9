"""`lengthwise predict`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from lengthwise.errors import InputError
from lengthwise.lengths import BaseDistribution
from lengthwise.predictors.castillo_api import BIN_WIDTH, p99_class, p99_of_ten
from lengthwise.predictors.prediction import QUANTILES, Prediction, loaded_once
from lengthwise.predictors.prediction import predict as predict_one
from lengthwise.predictors.resolve import best_packaged
from lengthwise.predictors.thinking import LEVELS, understood

BETAS = (0.1, 0.2, 0.3, 0.4, 0.5)
_WIDTH = 56
_MAX_NAMES = 14


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
    thinking: Annotated[
        str | None,
        typer.Option(help=f"The switch of a reasoning LLM: {', '.join(LEVELS)}; `NAME+learn` tells them apart."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also show quantiles, the P99 class and the scores of the policy TIE.")
    ] = False,
    bin_width: Annotated[int, typer.Option(help="With --details: width of a P99 class in tokens.", min=1)] = BIN_WIDTH,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    _explain: Annotated[bool, typer.Option("--explain", hidden=True, callback=_refuse)] = False,
) -> None:
    """Predict the length of an LLM's answer to a prompt, as a distribution.

    Median, interval, mean and P99 are of the same distribution: that of one answer, with the predictor's
    uncertainty in it. With --details, mean and std of repeated answers to the prompt, and the class of the P99 of ten
    of them, are shown beside them.

    Example: `lengthwise predict "Introduce Nanjing University in China." --llm llama-3.2-3B`
    """
    prompt = sys.stdin.read() if text == "-" else text
    name = best_packaged() if predictor is None else predictor
    if llm is None and (known := getattr(loaded_once(name), "llms", ())):
        typer.echo(f"predicted for an unknown LLM; --llm is more accurate with one of {_some(known)}", err=True)
    if thinking is not None and understood(thinking) is None:
        raise InputError(f"'{thinking}' is no switch", field="--thinking", hint=f"one of: {', '.join(LEVELS)}")
    found = predict_one(prompt, llm, predictor=name, max_tokens=max_tokens, thinking=understood(thinking))
    more = _details(found, bin_width) if details else {}
    if as_json:
        typer.echo(json.dumps({**found.to_json(), **more}, indent=2))
        return
    console = Console(markup=False, highlight=False)
    console.print(_table(found, more))
    for line in _interval(found):
        console.print(line, soft_wrap=True)


def _some(names: Sequence[str]) -> str:
    """Return the names, those with an organisation first; of many, some."""
    first = sorted(names, key=lambda name: "/" not in name)[:_MAX_NAMES]
    rest = len(names) - len(first)
    return ", ".join(first) + (f" and {rest} others (load_predictor(NAME).llms)" if rest else "")


def _details(found: Prediction, bin_width: int) -> dict[str, Any]:
    p99 = found.p99
    if found.sample_mean is not None and found.sample_std is not None:
        p99 = min(p99_of_ten(found.sample_mean, found.sample_std), found.quantile(1.0))
    more = {
        "std": found.distribution.std(),
        "repeated_answers": {"mean": found.sample_mean, "std": found.sample_std},
        **p99_class(p99, bin_width),
    }
    if isinstance(found.distribution, BaseDistribution):
        mean, cvar = found.distribution.mean_and_cvar(0.9)
        more["tie"] = {f"{beta:g}": mean + beta * cvar for beta in BETAS}
    return more


def _table(found: Prediction, more: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    low, high = found.interval
    table.add_row("median", f"{found.median:,.0f} tokens")
    table.add_row("90 % of answers", f"{low:,.0f} to {high:,.0f}")
    table.add_row("mean", f"{found.mean:,.0f}")
    table.add_row("P99", f"{found.p99:,.0f}")
    if found.note is not None:
        table.add_row("note", found.note)
    if more:
        table.add_row("std", f"{more['std']:,.0f}")
        table.add_row("answers within", ", ".join(f"{q:.0%} {found.quantile(q):,.0f}" for q in QUANTILES))
        if found.sample_mean is not None and found.sample_std is not None:
            repeated = f"mean {found.sample_mean:,.0f}, std {found.sample_std:,.0f}"
            table.add_row("repeated answers", repeated)
        first, end = more["predicted_p99_range"]
        table.add_row("P99 class", f"{more['predicted_p99_class']}: {first:,} to {end:,}, of ten answers")
    if "tie" in more:
        table.add_row("TIE by beta", ", ".join(f"{beta}: {score:,.0f}" for beta, score in more["tie"].items()))
    return table


def _interval(found: Prediction) -> list[str]:
    """Draw the 90 % interval on a log scale, the 50 % one thick, the median marked."""
    first, last = found.interval
    low, high = 10.0 ** math.floor(math.log10(first)), 10.0 ** math.ceil(math.log10(last + 1))
    ends = [round(math.log(found.quantile(q) / low) / math.log(high / low) * (_WIDTH - 1)) for q in QUANTILES]
    line = [
        "#" if place == ends[2] else "=" if ends[1] <= place <= ends[3] else "-" if ends[0] <= place <= ends[4] else " "
        for place in range(_WIDTH)
    ]
    drawn = f"{low:,.0f} |{''.join(line)}| {high:,.0f}"
    return [drawn, "tokens, log scale: 90 % of answers (-), 50 % (=), median (#)"]
