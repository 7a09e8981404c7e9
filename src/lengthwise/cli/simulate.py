"""`lengthwise simulate`: compare policies and routers on a simulated fleet, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from lengthwise.cli.output import SloTpot, SloTtft, need_folder, note, show, write_parquet
from lengthwise.errors import InputError
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.progress import late_bar
from lengthwise.reports.runs import verdict
from lengthwise.reports.simulation import facts, html_report, runs_of, tables
from lengthwise.simulator import Fleet, KvLink, Pools
from lengthwise.simulator.fleet import FleetEvent, FleetEventKind, parse_fleet_events
from lengthwise.simulator.grid import Plan, run_grid
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.routing import charged_times_s, unmeasured_note
from lengthwise.specs import split_specs
from lengthwise.workloads.traces import Source

_SLO = LatencyLimits()
_LINK = KvLink()
_TRAFFIC, _ENGINES, _OUTPUT = "Traffic", "Engines", "Output"
_DELAYS, _FAILURES, _POOLS = "Delays", "Engines that fail, start or drain", "Separate prefill and decode"


def simulate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="castillo|NAME|FILE",
            help="`castillo` (its test prompts), a name from `lengthwise traces list`, or a workload file.",
        ),
    ],
    fleet: Annotated[
        str, typer.Option(help="Engines as COUNT*MODEL@GPU, separated by commas.", rich_help_panel=_ENGINES)
    ] = "1*llama-3-8b@a100",
    policy: Annotated[
        str,
        typer.Option(
            help="Policies to compare, separated by commas: names, specs (tie:beta=0.3) or package.module:Class."
        ),
    ] = "fcfs",
    router: Annotated[
        str, typer.Option(help="Routers to compare, separated by commas; a router chooses the engine of each request.")
    ] = "round_robin",
    rate: Annotated[
        str | None,
        typer.Option(
            help="Requests per second, separated by commas [default: the workload's arrivals].",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            help="Instead of a rate: multiples of the capacity under FCFS and round robin, separated by commas.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    predictor: Annotated[
        str | None,
        typer.Option(
            help="Predictors to compare, separated by commas: `fast`, `default` or a model file (workloads with "
            "prompts), `history`, `memory` (past lengths behind the same prefix, session or tenant), `memory+fast`, "
            "`none`, `noisy:TAU`, `oracle` (TRUE LENGTHS: an upper bound) "
            "[default: fast if the workload has prompts, else history].",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            help="Number of requests [default: all; castillo: 1,000 or 20 per slot].", rich_help_panel=_TRAFFIC
        ),
    ] = None,
    llm: Annotated[
        str, typer.Option(help="castillo: the LLM whose answer lengths are used.", rich_help_panel=_TRAFFIC)
    ] = "llama-3.1-8b",
    seed: Annotated[
        int, typer.Option(help="Seed of prompts, lengths, arrivals and noise.", min=0, rich_help_panel=_TRAFFIC)
    ] = 0,
    seeds: Annotated[
        int,
        typer.Option(
            help="Number of seeds, from --seed on; every policy sees the same ones.", rich_help_panel=_TRAFFIC
        ),
    ] = 1,
    cv: Annotated[
        float | None,
        typer.Option(
            help="Draw new arrivals with gaps of this CV (1: Poisson), even if the workload has arrivals.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            help="Requests that run at once in an engine [default: vLLM's for the GPU].", rich_help_panel=_ENGINES
        ),
    ] = None,
    max_batched_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens computed per step [default: vLLM's for the GPU].", rich_help_panel=_ENGINES),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            help="KV memory of an engine in tokens [default: what the weights leave of the GPU].",
            rich_help_panel=_ENGINES,
        ),
    ] = None,
    prefix_caching: Annotated[
        bool | None,
        typer.Option(
            help="Reuse cached blocks of equal prompt prefixes [default: on, as in vLLM].", rich_help_panel=_ENGINES
        ),
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(
            help="What must fit into KV memory for admission: `prompt` (vLLM's rule), the predicted future `peak` of "
            "all running requests, a quantile of what all take together (`joint`, as in the gateway), or a `reserve` "
            "for each.",
            rich_help_panel=_ENGINES,
        ),
    ] = None,
    prediction_delay: Annotated[
        float, typer.Option(help="Seconds from arrival to prediction.", rich_help_panel=_DELAYS)
    ] = 0.0,
    decision_time: Annotated[
        float, typer.Option(help="Seconds that each admission or preemption costs the engine.", rich_help_panel=_DELAYS)
    ] = 0.0,
    routing_time: Annotated[
        str | None,
        typer.Option(
            metavar="[ROUTER=]US",
            help="Microseconds that a router takes per request: one number, or ROUTER=NUMBER separated by commas "
            "[default: as measured].",
            rich_help_panel=_DELAYS,
        ),
    ] = None,
    down: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE@S",
            help="This engine (numbered from 0) fails at this second; repeatable.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    up: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE@S",
            help="It starts, or starts again, at this second; repeatable.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    drain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENGINE@S",
            help="It takes no new requests from this second on; repeatable.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    disaggregate: Annotated[
        str | None,
        typer.Option(
            metavar="PREFILL:DECODE",
            help="Split the fleet: the first engines prefill, the others decode, as in 2:6.",
            rich_help_panel=_POOLS,
        ),
    ] = None,
    kv_link: Annotated[
        float,
        typer.Option(
            help="With --disaggregate: GB/s of the link over which an engine sends or receives KV.",
            rich_help_panel=_POOLS,
        ),
    ] = _LINK.gb_per_s,
    kv_latency: Annotated[
        float, typer.Option(help="With --disaggregate: latency of a transfer in milliseconds.", rich_help_panel=_POOLS)
    ] = 1e3 * _LINK.latency_s,
    decode_router: Annotated[
        str | None,
        typer.Option(
            help="With --disaggregate: router of the decode engines [default: as --router].", rich_help_panel=_POOLS
        ),
    ] = None,
    refresh: Annotated[
        str | None,
        typer.Option(
            help="With --disaggregate: predictor that is run again at the end of prefill [default: none].",
            rich_help_panel=_POOLS,
        ),
    ] = None,
    slo_ttft: SloTtft = _SLO.ttft_s,
    slo_tpot: SloTpot = _SLO.tpot_s,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Also write one row per request of every run (.parquet).", rich_help_panel=_OUTPUT
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="With --out: record the routing decision of each request, for `lengthwise explain`.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Also write an HTML report with figures.", rich_help_panel=_OUTPUT)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Simulate a workload on a fleet and compare policies and routers on the same arrivals and true lengths.

    Policies see predictions, not true lengths, unless --predictor oracle is given; every output then says TRUE LENGTHS.

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
        predictors=[] if predictor is None else list(dict.fromkeys(name.strip() for name in predictor.split(","))),
        rates=numbers(rate, "rate"),
        loads=numbers(load, "load"),
        seeds=range(seed, seed + seeds),
        slo=LatencyLimits(slo_ttft, slo_tpot),
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
    need_folder(out, "--out", ".parquet")
    need_folder(report, "--report", ".html")
    draw = Source(source, llm, requests, cv).draws(
        own_arrivals=plan.own_arrivals, slots=plan.fleet.slots, repeats=plan.repeats, on_note=note
    )
    with late_bar() as bar:
        grid = run_grid(plan, draw, on_progress=bar)
    if out is not None:
        write_parquet(grid.to_table(), out)
    origin = Origin.here(
        seed=seed if seeds == 1 else f"{seed} to {seed + seeds - 1}", hardware=f"simulated {fleet}, on {this_machine()}"
    )
    show(
        grid,
        tables,
        lambda found: {"origin": origin, **facts(found)},
        lambda found: html_report(found, origin),
        verdict=verdict(runs_of(grid)),
        report=report,
        as_json=as_json,
    )


def numbers(text: str | None, name: str) -> list[float]:
    """Parse numbers separated by commas; an empty list if the option is not given."""
    try:
        return [] if text is None else list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError as error:
        raise InputError(f"'{text}'", field=name, hint="give numbers separated by commas") from error


def _microseconds(text: str | None) -> dict[str, float] | float | None:
    try:
        if text is None or "=" not in text:
            return None if text is None else float(text)
        return {name.strip(): float(us) for name, _, us in (part.partition("=") for part in text.split(","))}
    except ValueError as error:
        hint = "give microseconds, or ROUTER=MICROSECONDS separated by commas"
        raise InputError(f"'{text}'", field="routing-time", hint=hint) from error


def _fleet_events(**given: list[str] | None) -> list[FleetEvent]:
    kinds = get_args(FleetEventKind)
    return [event for kind in kinds for text in given[kind] or () for event in parse_fleet_events(kind, text)]


def _pools(text: str | None, link: KvLink, decode_router: str | None) -> Pools | None:
    if text is not None:
        return Pools.parse(text, link=link, decode_router=decode_router)
    for name, given in (("kv-link", link != _LINK), ("decode-router", decode_router is not None)):
        if given:
            raise InputError("there are no separate pools to send KV between", field=name, hint="add --disaggregate")
    return None
