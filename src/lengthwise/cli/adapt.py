"""`lengthwise adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.output import need_folder
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import Table, print_tables, share, to_json

if TYPE_CHECKING:
    from lengthwise.predictors.adapt import AdaptReport

_NAMED = 4


def adapt(
    model: Annotated[str, typer.Argument(help="A packaged predictor (default, fast) or a model file.")],
    lengths: Annotated[
        Path,
        typer.Option(
            help="A file of `lengthwise collect`, or Parquet, CSV or JSON lines with the columns prompt and length."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Model file to write.")],
    llm: Annotated[str | None, typer.Option(help="Name of the LLM [default: the one in the file].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Adapt a predictor to a new LLM from 50 to 500 observed answer lengths, on the CPU in seconds to minutes.

    Nothing is retrained: the new LLM is a mixture of known LLMs with a spread fitted to its lengths. Scores are
    cross-validated by prompt.

    Example: `lengthwise adapt default --lengths lengths.parquet -o adapted.lw`
    """
    from lengthwise.predictors.adapt import ENOUGH, adapt_file, read_observed

    need_folder(out, "--out")
    observed = read_observed(lengths, llm)
    if observed.count < ENOUGH:
        typer.echo(f"warning: {observed.count} lengths are few; scores need {ENOUGH} or more", err=True)
    with late_bar() as bar:
        report = adapt_file(model, observed, out, progress=bar)
    if as_json:
        typer.echo(to_json({"out": str(out), "report": report}))
        return
    print_tables([_table(report)])
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def _table(report: AdaptReport) -> Table:
    kinds = {"as an unknown LLM" if not report.replaced else "as it was": report.before, "adapted": report.after}
    most = sorted(report.weights.items(), key=lambda pair: -abs(pair[1]))[:_NAMED]
    cut = f", {report.cut_off:,} of them cut off" if report.cut_off else ""
    return Table(
        title=f"{report.llm}: {report.lengths:,} lengths of {report.prompts:,} prompts{cut}",
        columns=["", "tau", "CRPS", "MAE", "in 50 %", "in 90 %"],
        rows=[
            [
                name,
                f"{each.tau:.3f}",
                f"{each.crps:,.1f}",
                f"{each.mae:,.1f}",
                share(each.coverage_50),
                share(each.coverage_90),
            ]
            for name, each in kinds.items()
        ],
        notes=[
            "each prompt's lengths against a prediction learned from the other prompts only; CRPS and MAE in tokens",
            "mostly " + ", ".join(f"{weight:+.2f} {llm.rsplit('/', 1)[-1]}" for llm, weight in most),
        ],
    )
