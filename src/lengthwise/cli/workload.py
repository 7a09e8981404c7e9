"""`lengthwise workload`: create a workload file, or describe a workload."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from lengthwise.cli.model_options import options_from
from lengthwise.cli.output import AsJson, note
from lengthwise.errors import InputError
from lengthwise.workloads import (
    DiscreteLengths,
    Workload,
    behind_prefixes,
    castillo_day,
    castillo_workload,
    into_sessions,
    load_alpaca,
    load_castillo,
    load_trace,
    react_sessions,
    react_workload,
    read_workload,
    redraw,
    replay,
    write_workload,
)
from lengthwise.workloads.datasets import PACKAGED
from lengthwise.workloads.traces import SAMPLE_ONLY

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Create workloads: requests with arrivals, prompts and true lengths, as Parquet, JSON lines or CSV.",
)

Out = Annotated[
    Path,
    typer.Option("--out", "-o", help="File to write: .parquet (everything), .jsonl (Mooncake's keys) or .csv."),
]
Rate = Annotated[float, typer.Option(help="Requests per second.")]
Cv = Annotated[
    float,
    typer.Option(help="Burstiness: coefficient of variation of the gaps. 1 is Poisson, 2 is bursty."),
]
Requests = Annotated[int, typer.Option(help="Number of requests; prompts repeat in another order if there are fewer.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same workload, bit for bit.")]
MaxTokens = Annotated[int | None, typer.Option(help="The client's max_tokens; longer true lengths are cut.")]


class _Shape(BaseModel):
    """Options that put requests into sessions and behind shared prefixes."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    shared_prefixes: int | None = None
    """Put each prompt behind one of this many shared system prompts."""
    prefix_tokens: int = 512
    """Length of a shared system prompt, in tokens."""
    popularity: Literal["zipf", "uniform"] = "zipf"
    """Popularity of the shared system prompts."""
    turns: float | None = None
    """Group requests into sessions with this mean number of turns."""
    think_s: float = 30.0
    """Mean seconds between the arrivals of two turns; with --closed-loop, between an answer and the next turn."""
    closed_loop: bool = False
    """A turn arrives after the answer to the turn before: a simulation decides when."""

    def apply(self, workload: Workload, seed: int) -> Workload:
        """Return the workload in this shape. Sessions first: a system prompt occurs once, at their start."""
        if self.turns is not None:
            workload = into_sessions(
                workload, turns=self.turns, think_s=self.think_s, seed=seed, closed_loop=self.closed_loop
            )
        elif self.closed_loop:
            raise InputError("a closed loop of requests without sessions", field="closed-loop", hint="give --turns")
        if self.shared_prefixes is not None:
            shared = {"prefixes": self.shared_prefixes, "tokens": self.prefix_tokens}
            workload = behind_prefixes(workload, **shared, popularity=self.popularity, seed=seed)
        return workload


@app.command()
@options_from(_Shape)
def castillo(
    llm: Annotated[
        str, typer.Option(help="The LLM whose answer lengths are used; a short name such as llama-3.1-8b is enough.")
    ],
    rate: Rate,
    out: Out,
    requests: Requests = 1000,
    cv: Cv = 1.0,
    seed: Seed = 0,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Only prompts of this split (train, validate, test); repeatable. No packaged predictor is trained "
            "on `test`, so that its predictions are as good as on new prompts only there [default: all]."
        ),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="Only prompts of this corpus (Mbpp, DollyDataset, ...); repeatable."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Folder or hub name (danfperam/castillo); default $LENGTHWISE_DATA/castillo."),
    ] = None,
    max_tokens: MaxTokens = None,
    as_json: AsJson = False,
    **shape: Any,
) -> None:
    """CASTILLO's prompts with the sampled answer lengths of one LLM.

    The true length of a request is one of the prompt's clean samples, drawn by seed.

    Example: `lengthwise workload castillo --llm llama-3.1-8b --rate 8 --shared-prefixes 10 -o w.parquet`
    """
    samples = load_castillo(data)
    if samples.origin == PACKAGED:
        note(SAMPLE_ONLY)
    samples = samples.where(split=split or None, corpus=corpus or None)
    workload = castillo_workload(samples, llm, requests=requests, rate=rate, cv=cv, seed=seed, max_tokens=max_tokens)
    write(_Shape(**shape).apply(workload, seed), out, as_json=as_json)


@app.command()
@options_from(_Shape)
def day(
    rate: Annotated[float, typer.Option(help="Requests per second in the busiest hour, from 15 h on.")],
    out: Out,
    llm: Annotated[str, typer.Option(help="The LLM whose answer lengths are used.")] = "llama-3.1-8b",
    minutes: Annotated[
        float,
        typer.Option(
            help="Length of an hour: 60 are the whole day; with 0.5 it takes 12 minutes, and seconds to simulate."
        ),
    ] = 0.5,
    seed: Seed = 0,
    max_tokens: MaxTokens = None,
    as_json: AsJson = False,
    **shape: Any,
) -> None:
    """A day of 24 hours: CASTILLO's prompts, few at night and most in the afternoon.

    The rate is a wave with its peak at 15 h and a tenth of it at 3 h; arrivals are Poisson. Shorter hours keep the
    rates, and leave queues less time to grow. The prompts are those that no packaged predictor is trained on.

    Example: `lengthwise workload day --rate 12 -o day.parquet`
    """
    samples = load_castillo(split="test")
    if samples.origin == PACKAGED:
        note(SAMPLE_ONLY)
    workload = castillo_day(samples, llm, peak_rate=rate, minutes=minutes, seed=seed).limited_to(max_tokens)
    write(_Shape(**shape).apply(workload, seed), out, as_json=as_json)


@app.command()
def react(
    rate: Rate,
    out: Out,
    workloads: Annotated[int, typer.Option(help="Number of shared prefixes.")] = 10,
    examples: Annotated[int, typer.Option(help="Groups of in-context examples: the length of the prefix.")] = 4,
    requests: Requests = 1000,
    lengths: Annotated[
        str, typer.Option(help="True lengths as length:probability pairs; max_tokens is the largest.")
    ] = "1:0.5,300:0.5",
    cv: Cv = 1.0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Preble's ReAct workload: a long prefix shared inside each workload, a short random tail.

    Four examples make 1,981 tokens, of which 1,897 are shared.

    Example: `lengthwise workload react --rate 64 --lengths "1:0.5,300:0.5" -o w.jsonl`
    """
    workload = react_workload(
        workloads=workloads,
        examples=examples,
        requests=requests,
        rate=rate,
        lengths=DiscreteLengths.parse(lengths),
        seed=seed,
        cv=cv,
    )
    write(workload, out, as_json=as_json)


@app.command()
def agents(
    rate: Rate,
    out: Out,
    sessions: Annotated[int, typer.Option(help="Number of sessions: tasks of an agent.")] = 500,
    think_s: Annotated[float, typer.Option(help="Mean seconds of a tool, between an answer and the next step.")] = 1.0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """ReAct agents in a closed loop: sessions of 2 to 23 steps, each after the answer to the step before and a tool.

    Needs the trajectories of ReAct's prompts in $LENGTHWISE_DATA/traces/react.

    Example: `lengthwise workload agents --rate 8 -o agents.parquet`
    """
    write(react_sessions(sessions=sessions, rate=rate, seed=seed, think_s=think_s), out, as_json=as_json)


@app.command()
@options_from(_Shape)
def alpaca(
    rate: Rate,
    out: Out,
    requests: Requests = 1000,
    cv: Cv = 1.0,
    seed: Seed = 0,
    max_tokens: MaxTokens = None,
    as_json: AsJson = False,
    **shape: Any,
) -> None:
    """Stanford Alpaca's instructions with the lengths of their reference answers (non-commercial data).

    Needs $LENGTHWISE_DATA/alpaca52k/alpaca52k.parquet.

    Example: `lengthwise workload alpaca --rate 20 --requests 5000 -o alpaca.parquet`
    """
    workload = redraw(load_alpaca(), requests=requests, rate=rate, cv=cv, seed=seed).limited_to(max_tokens)
    write(_Shape(**shape).apply(workload, seed), out, as_json=as_json)


@app.command()
@options_from(_Shape)
def trace(
    source: Annotated[str, typer.Argument(help="A name from `lengthwise traces list`, or a file.")],
    out: Out,
    rate: Annotated[float | None, typer.Option(help="Requests per second [default: the trace's rate].")] = None,
    requests: Annotated[int | None, typer.Option(help="Number of requests from the start [default: all].")] = None,
    cv: Annotated[
        float | None,
        typer.Option(help="Draw requests at random with Gamma arrivals of this CV instead of the trace's arrivals."),
    ] = None,
    seed: Seed = 0,
    max_tokens: MaxTokens = None,
    as_json: AsJson = False,
    **shape: Any,
) -> None:
    """A trace at another rate: its arrivals rescaled, or new arrivals with --cv.

    A trace without arrivals (lengths only, ShareGPT) needs --rate, and gets Poisson arrivals.

    Example: `lengthwise workload trace azure2023_conv --rate 20 --requests 10000 -o azure20.parquet`
    """
    workload = load_trace(source, need_arrivals=rate is None)
    if cv is None and workload.has_arrivals:
        workload = replay(workload, requests=requests, rate=rate)
    elif rate is None:
        reason = "has no arrivals" if cv is None else "--cv draws new arrivals"
        raise InputError(reason, source=source, field="arrival_s", hint="give --rate")
    else:
        n = len(workload) if requests is None else requests
        workload = redraw(workload, requests=n, rate=rate, cv=1.0 if cv is None else cv, seed=seed)
    workload = workload.limited_to(max_tokens)
    write(_Shape(**shape).apply(workload, seed), out, as_json=as_json)


@app.command()
def describe(
    source: Annotated[str, typer.Argument(help="A name from `lengthwise traces list`, or a workload file.")],
    as_json: AsJson = False,
) -> None:
    """Describe a workload: arrivals and lengths.

    Example: `lengthwise workload describe azure_sample`
    """
    if source == "castillo":
        raise InputError(
            "is length samples, not a workload", source=source, hint="use `lengthwise lengths fit castillo`"
        )
    workload = load_trace(source, need_arrivals=False)
    print_facts(workload, facts(workload), {}, as_json=as_json)


def facts(workload: Workload) -> dict[str, Any]:
    """A workload's statistics, ready for JSON."""
    return {
        "name": workload.name,
        "content_hash": workload.content_hash,
        **asdict(workload.describe()),
        "block_size": workload.block_size,
        "left_out": [asdict(entry) for entry in workload.left_out],
    }


def print_facts(workload: Workload, data: dict[str, Any], more: dict[str, str], *, as_json: bool) -> None:
    """Print `data` as JSON, or a workload's statistics and `more` rows as a table."""
    if as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    statistics = workload.describe()
    table = Table(title=workload.name, show_header=False, title_justify="left")
    table.add_row("requests", f"{statistics.requests:,}")
    if statistics.rate is None:
        table.add_row("arrivals", "none: all at once")
    else:
        table.add_row(
            "arrivals",
            f"{statistics.rate:.4g} per second over {statistics.duration_s:,.1f} s, CV {statistics.arrival_cv:.2f}",
        )
    for name, length in (("input tokens", statistics.input), ("output tokens", statistics.output)):
        percentiles = f"p50 {length.p50:,.0f}, p90 {length.p90:,.0f}, p99 {length.p99:,.0f}, max {length.max:,}"
        table.add_row(name, f"mean {length.mean:,.1f}, {percentiles}")
    if statistics.repeated_prefix is not None:
        table.add_row(
            "repeated prefix",
            f"{statistics.repeated_prefix:.1%} of prompt tokens, in blocks of {workload.block_size}",
        )
    for entry in workload.left_out:
        table.add_row("left out", f"{entry.rows:,} {entry.rule}")
    for name, value in more.items():
        table.add_row(name, value)
    Console(markup=False, highlight=False).print(table)


def write(workload: Workload, out: Path, *, as_json: bool) -> None:
    """Write the file and print what it holds."""
    write_workload(workload, out)
    if out.suffix == ".csv" and workload.has_blocks:
        note(f"CSV has no lists: block hashes are not in {out}")
    # JSON lines and CSV hold less than the workload; the hash shown is the one that a reader of the file computes.
    content_hash = workload.content_hash if out.suffix == ".parquet" else read_workload(out).content_hash
    data = {"file": str(out), **facts(workload), "content_hash": content_hash}
    print_facts(workload, data, {"content hash": content_hash, "file": str(out)}, as_json=as_json)
