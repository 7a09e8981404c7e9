"""`lengthwise simulate`: what policies would do to a workload on a fleet, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import pyarrow.parquet as pq
import typer

from lengthwise.cli.output import need_folder, show
from lengthwise.cli.workload import note
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.reports.simulation import facts, tables
from lengthwise.reports.simulation_figures import html_report
from lengthwise.simulator import Fleet, KvLink, Pools
from lengthwise.simulator.fleet_events import FleetEvent, FleetEventKind, parse_fleet_events
from lengthwise.simulator.grid import Plan, run_grid
from lengthwise.simulator.metrics import Slo
from lengthwise.simulator.routing import charged_times_s, unmeasured_note
from lengthwise.specs import split_specs
from lengthwise.workloads.files import atomic_path
from lengthwise.workloads.source import Source

_SLO = Slo()
_LINK = KvLink()


def simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="castillo|NAME|FILE",
            help="`castillo` (its test prompts), a name of `lengthwise traces list`, or a workload file.",
        ),
    ],
    fleet: Annotated[str, typer.Option(help="Engines as COUNT*MODEL@GPU, commas between.")] = "1*llama-3-8b@a100",
    policy: Annotated[str, typer.Option(help="Policies to compare, commas between.")] = "fcfs",
    router: Annotated[
        str, typer.Option(help="Routers to compare, commas between: who chooses among the engines.")
    ] = "round_robin",
    rate: Annotated[
        str | None,
        typer.Option(help="Requests per second, commas between; the workload's own arrivals if not given."),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(help="Instead of a rate: shares of what the fleet can do (FCFS, round robin), commas between."),
    ] = None,
    predictor: Annotated[
        str,
        typer.Option(
            help="What policies predict, commas between: `oracle` (true lengths), `noisy:TAU`, `history`, `none`; "
            "where the workload has prompts also `fast`, `default` or a model file."
        ),
    ] = "oracle",
    requests: Annotated[
        int | None, typer.Option(help="The first so many; castillo draws 1,000 if not given, or 20 per slot.")
    ] = None,
    llm: Annotated[str, typer.Option(help="castillo: whose answers.")] = "llama-3.1-8b",
    seed: Annotated[int, typer.Option(help="Of whatever is drawn: prompts, lengths, arrivals, noise.", min=0)] = 0,
    seeds: Annotated[
        int, typer.Option(help="Repeat with so many seeds, from --seed on; each is the same for all policies.")
    ] = 1,
    cv: Annotated[
        float | None,
        typer.Option(
            help="Draw arrivals anew, with gaps of this CV (1: Poisson), also where the workload has its own."
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests that run at once in an engine; vLLM's default for the GPU.")
    ] = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens computed in a step; vLLM's default for the GPU.")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="KV memory of an engine; what the weights leave of the GPU.")
    ] = None,
    prefix_caching: Annotated[
        bool | None, typer.Option(help="Keep the blocks of prompts for who begins alike; on, as in vLLM.")
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(
            help="What must fit to be admitted: `prompt` (vLLM's rule), or by predicted lengths the future `peak` "
            "of all, or a `reserve` for each."
        ),
    ] = None,
    prediction_delay: Annotated[float, typer.Option(help="Seconds from a request to the prediction about it.")] = 0.0,
    decision_time: Annotated[
        float, typer.Option(help="Seconds an engine is kept by each admission or preemption.")
    ] = 0.0,
    routing_time: Annotated[
        str | None,
        typer.Option(
            metavar="[ROUTER=]US",
            help="Microseconds a router takes for each request, one after the other: one figure, or one for each "
            "that is named, commas between; the others, and all if not given, take what was measured.",
        ),
    ] = None,
    down: Annotated[
        list[str] | None,
        typer.Option(metavar="ENGINE@S", help="This engine (numbered from 0) fails at this second; may be repeated."),
    ] = None,
    up: Annotated[
        list[str] | None,
        typer.Option(metavar="ENGINE@S", help="It is there (again) from this second on; may be repeated."),
    ] = None,
    drain: Annotated[
        list[str] | None,
        typer.Option(metavar="ENGINE@S", help="It takes no new requests from this second on; may be repeated."),
    ] = None,
    disaggregate: Annotated[
        str | None,
        typer.Option(
            metavar="PREFILL:DECODE",
            help="So many engines of the fleet, the first ones, compute prompts, and so many decode, as in 2:6.",
        ),
    ] = None,
    kv_link: Annotated[
        float, typer.Option(help="With --disaggregate: GB/s over which an engine sends or takes in KV.")
    ] = _LINK.gb_per_s,
    kv_latency: Annotated[
        float, typer.Option(help="With --disaggregate: milliseconds that a transfer takes beyond its bytes.")
    ] = 1e3 * _LINK.latency_s,
    decode_router: Annotated[
        str | None, typer.Option(help="With --disaggregate: who chooses among decode engines; as --router.")
    ] = None,
    refresh: Annotated[
        str | None,
        typer.Option(help="With --disaggregate: a predictor asked again at the end of prefill; the prediction stays."),
    ] = None,
    slo_ttft: Annotated[float, typer.Option(help="Goodput: seconds to the first token, at most.")] = _SLO.ttft_s,
    slo_tpot: Annotated[float, typer.Option(help="Goodput: seconds per further token, at most.")] = _SLO.tpot_s,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write one row per request of every run: .parquet.")
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="With --out: keep why each request went where it went (`lengthwise explain`)."),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Also write a page with plots: .html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Serve a workload on simulated engines and compare policies on the same arrivals and lengths.

    Example: `lengthwise simulate castillo --load 0.7,0.9,1.1 --policy fcfs,tie,lengthwise --max-num-seqs 32`
    """
    if seeds < 1:
        raise InputError(f"{seeds} seeds", field="seeds", hint="give at least 1")
    engines = Fleet.parse(fleet).limited_to(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_batched_tokens,
        kv_tokens=kv_tokens,
        prefix_caching=prefix_caching,
        admission=admission,
    )
    routers = list(dict.fromkeys(split_specs(router)))
    times_us = _microseconds(routing_time)
    for each in routers:
        if (unmeasured := unmeasured_note(each, len(engines), times_us)) is not None:
            note(unmeasured)
    plan = Plan(
        engines,
        policies=list(dict.fromkeys(split_specs(policy))),
        predictors=list(dict.fromkeys(name.strip() for name in predictor.split(","))),
        rates=numbers(rate, "rate"),
        loads=numbers(load, "load"),
        seeds=range(seed, seed + seeds),
        slo=Slo(slo_ttft, slo_tpot),
        prediction_delay_s=prediction_delay,
        decision_s=decision_time,
        routers=routers,
        routing_s=charged_times_s(routers, len(engines), times_us),
        fleet_events=_fleet_events(down=down, up=up, drain=drain),
        explain=explain,
        pools=_pools(disaggregate, KvLink(kv_link, 1e-3 * kv_latency), decode_router),
        refresh=refresh,
    )
    if explain and out is None:
        raise InputError("the routing trace needs a file", field="explain", hint="give a file with --out")
    _check_writable(out, ".parquet")
    _check_writable(report, ".html")
    draw = Source(source, llm, requests, cv).draws(
        own_arrivals=plan.own_arrivals, slots=plan.fleet.slots, repeats=plan.repeats, on_note=note
    )
    with late_bar() as bar:
        grid = run_grid(plan, draw, on_progress=bar)
    if out is not None:
        with atomic_path(out) as path:
            pq.write_table(grid.to_table(), path)
    show(grid, tables, facts, html_report, report=report, as_json=as_json)


def numbers(text: str | None, name: str) -> list[float]:
    """A list as options have it; none if it is not given."""
    try:
        return [] if text is None else list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError as error:
        raise InputError(f"'{text}'", field=name, hint="give numbers, commas between") from error


def _microseconds(text: str | None) -> dict[str, float] | float | None:
    """One figure, or some by router."""
    try:
        if text is None or "=" not in text:
            return None if text is None else float(text)
        return {name.strip(): float(us) for name, _, us in (part.partition("=") for part in text.split(","))}
    except ValueError as error:
        hint = "give microseconds, or ROUTER=MICROSECONDS, commas between"
        raise InputError(f"'{text}'", field="routing-time", hint=hint) from error


def _fleet_events(**given: list[str] | None) -> list[FleetEvent]:
    """By kind, as --down, --up and --drain give them."""
    kinds = get_args(FleetEventKind)
    return [event for kind in kinds for text in given[kind] or () for event in parse_fleet_events(kind, text)]


def _pools(text: str | None, link: KvLink, decode_router: str | None) -> Pools | None:
    """What is said of pools that are not there is a mistake."""
    if text is not None:
        return Pools.parse(text, link=link, decode_router=decode_router)
    for name, given in (("kv-link", link != _LINK), ("decode-router", decode_router is not None)):
        if given:
            raise InputError("nothing is sent between engines", field=name, hint="give pools too, with --disaggregate")
    return None


def _check_writable(out: Path | None, suffix: str) -> None:
    """Before the work, not after it."""
    if out is None:
        return
    if out.suffix != suffix:
        raise InputError(f"does not end in {suffix}", source=out, hint=f"let it end in {suffix}")
    need_folder(out, "--out" if suffix == ".parquet" else "--report")
