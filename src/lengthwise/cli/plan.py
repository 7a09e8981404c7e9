"""`lengthwise plan`: the fewest engines that serve a workload within latency limits, by simulation."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import options_from, validated
from lengthwise.cli.output import LIMITS, AsJson, Report, need_folder, note, show
from lengthwise.errors import InputError
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.planning import PlanReport
from lengthwise.reports.progress import late_bar
from lengthwise.simulator.cluster import at_rate
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.planning import CapacitySearch, plan_seeds
from lengthwise.simulator.sweep import Limits, SweepConfig
from lengthwise.specs import split_specs

_TRAFFIC = "Traffic"


@options_from(
    SweepConfig,
    Limits,
    only=("requests", "cv", "llm", "seed", "max_num_seqs"),
    panels={_TRAFFIC: ("requests", "cv", "llm", "seed")},
)
def plan(
    source: Annotated[
        str, typer.Argument(metavar="TRACE", help="A name from `lengthwise traces list`, a workload file, or castillo.")
    ],
    engine: Annotated[
        str, typer.Option(help="The engine to count: MODEL@GPU, or a file of `lengthwise engine fit`.")
    ] = "llama-3-8b@a100",
    engines: Annotated[str, typer.Option(metavar="MIN..MAX", help="Range that is searched.")] = "1..16",
    policy: Annotated[str, typer.Option(help="Policies to compare, separated by commas.")] = "fcfs,lengthwise",
    router: Annotated[str, typer.Option(help="Router that chooses the engine of each request.")] = "least_load",
    predictor: Annotated[
        str | None,
        typer.Option(
            help="Predictor, as in `simulate`; `oracle` means TRUE LENGTHS [default: fast with prompts, else history]."
        ),
    ] = None,
    slo_ttft: Annotated[float | None, typer.Option(help="Largest TTFT in seconds.", rich_help_panel=LIMITS)] = None,
    slo_tpot: Annotated[float | None, typer.Option(help="Largest TPOT in seconds.", rich_help_panel=LIMITS)] = None,
    slo_e2e: Annotated[float | None, typer.Option(help="Largest E2E in seconds.", rich_help_panel=LIMITS)] = None,
    attainment: Annotated[
        float, typer.Option(help="Share of requests that must be within all limits.", rich_help_panel=LIMITS)
    ] = 0.99,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second [default: the trace's arrivals].", rich_help_panel=_TRAFFIC),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=50,
            help="Draws of the traffic that must all be served. A trace with its own arrivals is one draw, and the "
            "shares have an interval instead.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = 5,
    report: Report = None,
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Find the fewest engines under each policy that serve a trace within latency limits.

    Every policy sees the same requests; the number of engines is found by bisection in the simulator. Traffic that is
    drawn (castillo, --cv) is drawn with 5 seeds, and the answer is enough in all of them; --seeds 1 is quicker.

    Example: `lengthwise plan azure2023_conv --slo-ttft 2 --slo-e2e 30 --engines 1..16 --report plan.html`

    Exit code 1 if no policy meets the limits with the most engines.
    """
    need_folder(report, "--report", ".html")
    limits = [math.inf if each is None else each for each in (slo_ttft, slo_tpot, slo_e2e)]
    if not any(map(math.isfinite, limits)):
        raise InputError("no limit", hint="give --slo-ttft, --slo-tpot or --slo-e2e")
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"a rate of {rate:g}", field="rate", hint="give requests per second above 0")
    fewest, most = _range(engines)
    limited = {"max_num_seqs": fields.pop("max_num_seqs")}
    config = validated(SweepConfig, workload=source, fleet=engine, limits=limited, seeds=seeds, **fields)
    ((drawn_from, planned),) = config.plans()
    spec = planned.fleet.engines[0]
    draw = drawn_from.draws(own_arrivals=rate is None, slots=spec.max_num_seqs, on_note=note)
    workloads = [at_rate(draw(each), rate) for each in planned.seeds]
    if seeds > 1 and workloads[0].content_hash == workloads[1].content_hash:
        workloads = workloads[:1]
    slo = LatencyLimits(*limits)
    searches = [
        CapacitySearch(workload, spec, slo, attainment, fewest, most, router, predictor) for workload in workloads
    ]
    with late_bar() as bar:
        plans = plan_seeds(searches, list(dict.fromkeys(split_specs(policy))), bar)
        alone = searches[0].without_queue() if any(each.engines is None for each in plans) else None
    found = PlanReport(searches[0], plans, alone)
    drawn = str(config.seed) if len(workloads) == 1 else config.drawn_seeds
    origin = Origin.here(seed=drawn, hardware=f"simulated {spec.name}, on {this_machine()}")
    show(found.document(origin), report, as_json=as_json)
    if all(each.engines is None for each in plans):
        raise typer.Exit(1)


def _range(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    try:
        return (int(low), int(high)) if dots else (1, int(low))
    except ValueError:
        raise InputError(f"'{text}'", field="engines", hint="give a range such as 1..16") from None
