"""`lengthwise explain`: the costs that a router compared for one request of a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from lengthwise.cli.output import AsJson, show
from lengthwise.errors import InputError
from lengthwise.reports.page import Document
from lengthwise.reports.tables import Table
from lengthwise.simulator.outcome import TRACE_COLUMNS, read_costs


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="File that `lengthwise simulate --out --explain` wrote.")],
    request: Annotated[
        int, typer.Argument(metavar="REQUEST_ID", help="Its column `request`: from 0, in order of arrival.")
    ],
    router: Annotated[str | None, typer.Option(help="Only runs with this router.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only runs with this policy.")] = None,
    predictor: Annotated[str | None, typer.Option(help="Only runs with this predictor.")] = None,
    load: Annotated[float | None, typer.Option(help="Only runs at this load.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only runs with this seed.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the engines that could have served a request, and the cost of each in the router's unit.

    Example: `lengthwise explain run.parquet 17 --router lengthwise`
    """
    only = {"router": router, "policy": policy, "predictor": predictor, "load": load, "seed": seed}
    rows = _rows(run, request, {name: value for name, value in only.items() if value is not None})
    tables = [costs_table(row, read_costs(row)) for row in rows]
    show(Document("", tables, _plain(rows)), as_json=as_json)


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    facts = ({name: row[name] for name in row if name not in TRACE_COLUMNS} for row in rows)
    return [{**fact, "costs": read_costs(row)} for fact, row in zip(facts, rows, strict=True)]


def _rows(run: Path, request: int, only: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the request in the selected runs of the file."""
    try:
        known = pq.read_schema(run).names
    except FileNotFoundError:
        raise InputError("is not a file", source=run) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError("is not a Parquet file", source=run) from error
    if missing := [name for name in ("request", *TRACE_COLUMNS) if name not in known]:
        hint = "write it with `lengthwise simulate ... --out RUN --explain`"
        raise InputError(f"has no column {missing[0]}", source=run, hint=hint)
    rows: list[dict[str, Any]] = pq.read_table(run, filters=[("request", "=", request)]).to_pylist()
    if not rows:
        last = int(pq.read_table(run, columns=["request"])["request"].to_numpy().max(initial=-1))
        raise InputError(f"there is no request {request}", source=run, hint=f"they are numbered from 0 to {last}")
    found = [row for row in rows if all(row[name] == value for name, value in only.items())]
    if not found:
        runs = sorted({", ".join(f"{name} {row[name]}" for name in only) for row in rows})
        raise InputError("no run matches", source=run, hint=f"there are: {'; '.join(runs)}")
    return found


def costs_table(row: Mapping[str, Any], costs: Mapping[str, Mapping[str, float]] | None) -> Table:
    """Return the engines that could have been chosen, the cheapest first; `row` is the request in a written run."""
    chosen, predictor = row["engine"], row["predictor"]
    kind = f"{row['policy']} behind {row['router']}" + (f", predictor {predictor}" if predictor else "")
    title = f"Request {row['request']}"
    notes = [f"Sent to {chosen}: {kind}, load {row['load']:.2f}, seed {row['seed']}.", _outcome(row)]
    if not costs or not any(costs.values()):
        return Table(title, ("engine",), [(f"{chosen} chosen",)], [*notes, "This router compares no costs."])
    names = list(costs.get(chosen, {}))
    totals = {engine: sum(terms.values()) for engine, terms in costs.items()}
    if len(costs) == 1:
        notes.append("One engine could be chosen, or the router records the terms of its choice only.")
    rows = [
        [f"{engine} chosen" if engine == chosen else engine, *(_figure(costs[engine][name]) for name in names)]
        + [_figure(totals[engine])] * (len(costs) > 1)
        for engine in sorted(costs, key=lambda engine: (totals[engine], engine))
    ]
    return Table(title, ("engine", *names, *(["sum"] * (len(costs) > 1))), rows, notes)


def _outcome(row: Mapping[str, Any]) -> str:
    again = f", resubmitted {row['resubmissions']} times" if row["resubmissions"] else ""
    if row["finished_s"] is None:
        return f"It was refused{again}."
    ttft_s, e2e_s = row["first_token_s"] - row["arrival_s"], row["finished_s"] - row["arrival_s"]
    return (
        f"{row['input_tokens']:,} prompt tokens, {row['cached_tokens']:,} of them cached; first token after "
        f"{ttft_s:.3f} s, {row['output_tokens']:,} tokens after {e2e_s:.3f} s{again}."
    )


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"
