"""`lengthwise simulate`: compare policies and routers on a simulated fleet, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import options_from, validated
from lengthwise.cli.output import (
    SloE2e,
    SloPerToken,
    SloTpot,
    SloTtft,
    need_folder,
    need_report,
    note,
    show,
    write_parquet,
)
from lengthwise.errors import InputError
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.progress import late_bar
from lengthwise.reports.simulation import grid_document
from lengthwise.simulator import KvLink, Pools
from lengthwise.simulator.grid import run_grid
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.routing import unmeasured_note
from lengthwise.simulator.sweep import Limits, SweepConfig
from lengthwise.simulator.switching import Switching

_SLO = LatencyLimits()
_LINK = KvLink()
_ENGINES, _OUTPUT, _POOLS = "Engines", "Output", "Separate prefill and decode"
_PANELS = {
    "Traffic": ("rate", "load", "requests", "llm", "seed", "seeds", "cv"),
    _ENGINES: Limits.model_fields,
    "Delays": ("prediction_delay", "decision_time", "routing_time"),
    "Engines that fail, start or drain": ("down", "up", "drain"),
}


@options_from(SweepConfig, Limits, without=("workload", "fleet", "limits"), panels=_PANELS)
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
    switch_every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="With --disaggregate: how often engines may change pools, by the predicted load [default: never].",
            rich_help_panel=_POOLS,
        ),
    ] = None,
    refresh: Annotated[
        str | None,
        typer.Option(
            help="With --disaggregate: predictor that is run again at the end of prefill; `probe`: true lengths with "
            "the error of a probe's first reading [default: none].",
            rich_help_panel=_POOLS,
        ),
    ] = None,
    slo_ttft: SloTtft = _SLO.ttft_s,
    slo_tpot: SloTpot = _SLO.tpot_s,
    slo_e2e: SloE2e = None,
    slo_per_token: SloPerToken = None,
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
    **fields: Any,
) -> None:
    """Simulate a workload on a fleet and compare policies and routers on the same arrivals and true lengths.

    Policies see predictions, not true lengths, unless --predictor oracle is given; every output then says TRUE LENGTHS.

    Example: `lengthwise simulate castillo --load 0.7,0.9,1.1 --policy fcfs,tie,lengthwise --max-num-seqs 32`
    """
    limits = {name: fields.pop(name) for name in Limits.model_fields}
    config = validated(SweepConfig, workload=source, fleet=fleet, limits=limits, **fields)
    ((drawn_from, planned),) = config.plans()
    for router in planned.routers:
        if (unmeasured := unmeasured_note(router, len(planned.fleet), config.routing_time)) is not None:
            note(unmeasured)
    plan = replace(
        planned,
        slo=LatencyLimits.given(slo_ttft, slo_tpot, slo_e2e, slo_per_token),
        explain=explain,
        pools=_pools(disaggregate, KvLink(kv_link, 1e-3 * kv_latency), decode_router, switch_every),
        refresh=refresh,
    )
    if explain and out is None:
        raise InputError("the routing trace needs a file", field="explain", hint="give a file with --out")
    if explain and len(plan.fleet) == 1:
        raise InputError("one engine leaves no choice to explain", field="explain", hint="give a --fleet of several")
    need_folder(out, "--out", ".parquet")
    need_report(report)
    draw = drawn_from.draws(own_arrivals=plan.own_arrivals, slots=plan.fleet.slots, repeats=plan.repeats, on_note=note)
    with late_bar() as bar:
        grid = run_grid(plan, draw, on_progress=bar)
    if out is not None:
        write_parquet(grid.to_table(), out)
    origin = Origin.here(seed=config.drawn_seeds, hardware=f"simulated {fleet}, on {this_machine()}")
    show(grid_document(grid, origin), report, as_json=as_json)


def _pools(text: str | None, link: KvLink, decode_router: str | None, switch_every: float | None) -> Pools | None:
    if text is not None:
        pools = Pools.parse(text, link=link, decode_router=decode_router)
        return pools if switch_every is None else replace(pools, switching=Switching(switch_every))
    changed = {"kv-link": link != _LINK, "decode-router": decode_router is not None}
    for name, given in (changed | {"switch-every": switch_every is not None}).items():
        if given:
            raise InputError("there are no separate pools to send KV between", field=name, hint="add --disaggregate")
    return None
