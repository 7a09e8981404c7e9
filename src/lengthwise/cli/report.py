"""`lengthwise report`: show stored runs, compare two files of them, or replay logged traffic under other policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.output import AsJson, MaxNumSeqs, need_report, show
from lengthwise.defaults import DEFAULT_POLICY
from lengthwise.errors import InputError
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.progress import late_bar
from lengthwise.reports.stored import compare_runs, read_runs
from lengthwise.specs import split_specs

_TRAFFIC = "Traffic of a gateway"


def report(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="A.JSON|DIR",
            help="Output of simulate, sweep, plan or replay with --json, or the log of `serve --observe --log DIR`.",
        ),
    ],
    second: Annotated[
        Path | None, typer.Argument(metavar="[B.JSON]", help="The same after a change; each run is paired by its name.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="Policies to compare with FCFS, separated by commas.", rich_help_panel=_TRAFFIC)
    ] = DEFAULT_POLICY,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine of the replay: MODEL@GPU or a file of `lengthwise engine fit` [default: fitted to the log].",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    max_num_seqs: MaxNumSeqs = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens computed in a step.", rich_help_panel=_TRAFFIC)
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV memory of the engine.", rich_help_panel=_TRAFFIC)
    ] = None,
    page: Annotated[Path | None, typer.Option("--report", help="Also write an HTML report with figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs that were stored with --json, or show one; or estimate what a policy gains on logged traffic.

    Ratios are second over first. They have intervals where both files hold the same requests under several seeds.

    A folder is the log of a gateway, which may be still open: its requests are replayed in the simulator under FCFS and
    under the policies.

    Example: `lengthwise report before.json after.json --report change.html`

    Example: `lengthwise report traffic/ --policy lengthwise,sjf`
    """
    need_report(page)
    if first.is_dir():
        if second is not None:
            raise InputError("a folder is shown alone", source=second, hint="name one folder, or two files")
        limits = {"max_num_batched_tokens": max_batched_tokens, "kv_tokens": kv_tokens, "max_num_seqs": max_num_seqs}
        _replay(first, page, as_json=as_json, engine=engine, policies=split_specs(policy), **limits)
        return
    before = read_runs(first)
    document = before.document if second is None else compare_runs(before, read_runs(second)).document(Origin.here())
    show(document, page, as_json=as_json)


def _replay(folder: Path, page: Path | None, *, as_json: bool, **options: Any) -> None:
    """Show what policies would have gained; `options` are those of `observed_gain`."""
    from lengthwise.reports.observed import observed_document
    from lengthwise.simulator.observed import observed_gain  # loads the simulator
    from lengthwise.traffic.reader import read_traffic

    with late_bar("reading the log") as bar:
        found = observed_gain(read_traffic(folder), str(folder), on_progress=bar, **options)
    origin = Origin.here(hardware=f"replay of {found.engine_name}, simulated on {this_machine()}")
    show(observed_document(found, origin), page, as_json=as_json)
