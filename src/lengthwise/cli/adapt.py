"""`lengthwise adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.output import need_folder
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import Table, print_tables, share, to_json

if TYPE_CHECKING:
    from lengthwise.predictors.adapt import AdaptReport
    from lengthwise.predictors.adapt_traffic import TrafficAdaptation

_NAMED = 4


def adapt(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A packaged predictor (default, fast) or a model file [default with --from: the one that predicted "
            "the newest request of the log]."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Model file to write [default with --from: predictor.lw in its folder]."),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            help="A file of `lengthwise collect`, or Parquet, CSV or JSON lines with the columns prompt and length."
        ),
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="In place of --lengths: a log of `serve --log`.")
    ] = None,
    llm: Annotated[str | None, typer.Option(help="Name of the LLM [default: the one in the file].")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --from: write the file even if no LLM is predicted better.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Adapt a predictor to a new LLM from 50 to 500 observed answer lengths, on the CPU in seconds to minutes.

    Nothing is retrained: the new LLM is a mixture of known LLMs with a spread fitted to its lengths. Scores are
    cross-validated by prompt.

    With --from, learn from a gateway's traffic as a server does while it serves: from prompts where the log has them
    (--keep-prompts), else a shift and a spread for each LLM and tenant. Scores are of the last fifth of the requests;
    if they are not better there, nothing is written (exit code 1). `serve --log DIR --watch` uses DIR/predictor.lw
    without a restart.

    Example: `lengthwise adapt default --lengths lengths.parquet -o adapted.lw`

    Example: `lengthwise adapt --from traffic/`
    """
    from lengthwise.predictors.adapt import ENOUGH, adapt_file, read_observed

    need_folder(out, "--out", ".lw")
    if (lengths is None) == (traffic is None):
        raise InputError("no lengths" if lengths is None else "two sources", hint="give --lengths FILE or --from DIR")
    if traffic is not None:
        _adapt_traffic(model, traffic, out, force=force, as_json=as_json)
        return
    assert lengths is not None  # noqa: S101
    if model is None:
        raise InputError("no predictor to adapt", hint="name one, such as default or fast, or a model file")
    if out is None:
        raise InputError("no file to write", hint="name one with -o FILE.lw")
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


def _adapt_traffic(model: str | None, folder: Path, out: Path | None, *, force: bool, as_json: bool) -> None:
    from lengthwise.predictors.adapt_traffic import adapt_traffic, predictor_in_use
    from lengthwise.traffic.log import PREDICTOR_NAME
    from lengthwise.traffic.reader import read_traffic

    traffic = read_traffic(folder)
    out = folder / PREDICTOR_NAME if out is None else out
    need_folder(out, "--out")
    with late_bar() as bar:
        found = adapt_traffic(model or predictor_in_use(traffic, folder), traffic, out, force=force, progress=bar)
    if as_json:
        better = [each.llm for each in found.llms if each.better]
        typer.echo(to_json({"out": str(out), "written": found.written, "better": better, "report": found}))
    else:
        print_tables([_traffic_table(found)])
        if found.written:
            typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB")
    if not found.written:
        typer.echo(f"{out} is not written: no LLM is predicted better; --force writes it", err=True)
        raise typer.Exit(1)


def _traffic_table(found: TrafficAdaptation) -> Table:
    from lengthwise.reports.traffic import SCORE_COLUMNS, score_cells

    rows = []
    for each in found.llms:
        how = "from prompts" if each.texts else "without prompts"
        verdict = "better" if each.better else "not better"
        rows.append([f"{each.llm}, as it was", *score_cells(each.before)])
        rows.append([f"{each.llm}, {how}: {verdict}", *score_cells(each.after)])
    notes = [
        "the last fifth of the requests, learned from the others; what is written is learned from all",
        "better: the mean log score of held-out lengths is higher; prefix memory is left out",
    ]
    if found.too_few:
        notes.append("too few lengths: " + ", ".join(f"{llm} ({count})" for llm, count in found.too_few.items()))
    if found.cut_off:
        notes.append("too many answers cut off: " + ", ".join(found.cut_off))
    begins = frozenset(range(2, len(rows), 2))
    return Table(f"{found.base}, adapted to traffic", ["", *SCORE_COLUMNS], rows, notes, begins)
