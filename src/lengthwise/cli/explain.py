"""`lengthwise explain`: why a request of a simulation went where it went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from lengthwise.errors import InputError
from lengthwise.reports.routing_trace import reasons_table
from lengthwise.reports.tables import print_tables, to_json
from lengthwise.simulator.routing_trace import COLUMNS, read_reasons


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="What `lengthwise simulate --out --explain` wrote.")],
    request: Annotated[int, typer.Argument(metavar="REQUEST_ID", help="Its column `request`: from 0, as they came.")],
    router: Annotated[str | None, typer.Option(help="Only behind this router.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only under this policy.")] = None,
    predictor: Annotated[str | None, typer.Option(help="Only with this predictor.")] = None,
    load: Annotated[float | None, typer.Option(help="Only at this load.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only with this seed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Say which engines could have served a request, and what each would have cost by the router's reckoning.

    Example: `lengthwise explain run.parquet 17 --router lengthwise`
    """
    only = {"router": router, "policy": policy, "predictor": predictor, "load": load, "seed": seed}
    rows = _rows(run, request, {name: value for name, value in only.items() if value is not None})
    if as_json:
        facts = [{name: row[name] for name in row if name not in COLUMNS} for row in rows]
        typer.echo(to_json([{**fact, "weighed": read_reasons(row)} for fact, row in zip(facts, rows, strict=True)]))
    else:
        print_tables([reasons_table(row, read_reasons(row)) for row in rows])


def _rows(run: Path, request: int, only: dict[str, Any]) -> list[dict[str, Any]]:
    """The request in every run of the file that was asked for."""
    try:
        known = pq.read_schema(run).names
    except FileNotFoundError:
        raise InputError("is not a file", source=run) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError("is not a Parquet file", source=run) from error
    if missing := [name for name in ("request", *COLUMNS) if name not in known]:
        hint = "write it with `lengthwise simulate ... --out RUN --explain`"
        raise InputError(f"has no column {missing[0]}", source=run, hint=hint)
    rows: list[dict[str, Any]] = pq.read_table(run, filters=[("request", "=", request)]).to_pylist()
    if not rows:
        last = int(pq.read_table(run, columns=["request"])["request"].to_numpy().max(initial=-1))
        raise InputError(f"there is no request {request}", source=run, hint=f"they are numbered from 0 to {last}")
    found = [row for row in rows if all(row[name] == value for name, value in only.items())]
    if not found:
        runs = sorted({", ".join(f"{name} {row[name]}" for name in only) for row in rows})
        raise InputError("no run of this kind", source=run, hint=f"there are: {'; '.join(runs)}")
    return found
