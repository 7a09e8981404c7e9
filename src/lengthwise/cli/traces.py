"""`lengthwise traces`: list, show and convert traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from lengthwise.cli.output import AsJson
from lengthwise.cli.workload import facts, print_facts, write
from lengthwise.workloads import TRACES, Trace, load_trace
from lengthwise.workloads.formats import Format

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, show and convert traces. LENGTHWISE_DATA names the folder of the full traces.",
)

_BINS = 40
_BARS = "▁▂▃▄▅▆▇█"


@app.command("list")
def list_traces(as_json: AsJson = False) -> None:
    """List the traces of the catalogue, and which of them are on this machine.

    Example: `LENGTHWISE_DATA=~/data lengthwise traces list`
    """
    if as_json:
        typer.echo(json.dumps([_entry(trace) for trace in TRACES.values()], indent=2))
        return
    table = Table("name", "here", "requests", "knows", "licence")
    for trace in TRACES.values():
        table.add_row(
            f"{trace.name}\n{trace.about}",
            "yes" if trace.path else "no",
            f"{trace.rows:,}",
            "\n".join(_knows(trace)),
            trace.licence,
            end_section=True,
        )
    Console(markup=False, highlight=False).print(table)
    if not all(trace.path for trace in TRACES.values()):
        typer.echo("Missing traces are searched for in the folder that LENGTHWISE_DATA names.")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name from `lengthwise traces list`, or a file.")],
    as_json: AsJson = False,
) -> None:
    """Show a trace: rate, burstiness, lengths, repeated prefixes, source and licence.

    Example: `lengthwise traces show azure_sample`
    """
    workload = load_trace(name, need_arrivals=False)
    trace = TRACES.get(name)
    origin = {} if trace is None else {"licence": trace.licence, "source": trace.source}
    more = {
        "content hash": workload.content_hash,
        "input, log scale": _histogram(workload.input_tokens),
        "output, log scale": _histogram(workload.output_tokens),
    }
    if workload.has_arrivals:
        counts, _ = np.histogram(workload.arrival_s, bins=_BINS)
        more["arrivals in time"] = f"{sparkline(counts)} max {counts.max():,}"
    print_facts(workload, {**facts(workload), **origin}, {**more, **origin}, as_json=as_json)


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A file, or a name from `lengthwise traces list`.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .parquet, .jsonl or .csv.")],
    from_format: Annotated[Format | None, typer.Option("--from", help="Format of IN [default: detected].")] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per block hash, if IN does not state it (Mooncake: 512).")
    ] = None,
    jitter_seed: Annotated[
        int | None,
        typer.Option(help="Spread Mooncake's three-second ticks: each arrival to a random moment of its tick."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert between formats: Parquet, CSV, Azure's CSV, Mooncake's JSON lines, ShareGPT's JSON.

    Example: `lengthwise traces convert AzureLLMInferenceTrace_conv.csv conv.parquet`
    """
    workload = load_trace(source, format=from_format, block_size=block_size, jitter_seed=jitter_seed)
    write(workload, out, as_json=as_json)


def sparkline(counts: NDArray[np.integer[Any]]) -> str:
    """Draw counts as bars of eight heights; a count above zero always has a bar."""
    if not counts.any():
        return " " * len(counts)
    heights = np.ceil(counts / counts.max() * len(_BARS)).astype(int)
    return "".join(_BARS[height - 1] if height else " " for height in heights.tolist())


def _histogram(tokens: NDArray[np.int64]) -> str:
    """Lengths are spread over orders of magnitude, so bins are equal on a logarithmic axis."""
    low, high = int(tokens.min()), int(tokens.max())
    if low == high:
        return f"all {low:,}"
    counts, _ = np.histogram(np.log(tokens), bins=_BINS)
    return f"{low:,} {sparkline(counts)} {high:,}"


def _knows(trace: Trace) -> list[str]:
    return ["lengths", *(["arrivals"] if trace.arrivals else []), *(["prefixes"] if trace.prefixes else [])]


def _entry(trace: Trace) -> dict[str, Any]:
    return {
        "name": trace.name,
        "about": trace.about,
        "licence": trace.licence,
        "source": trace.source,
        "requests": trace.rows,
        "arrivals": trace.arrivals,
        "prefixes": trace.prefixes,
        "here": trace.path is not None,
    }
