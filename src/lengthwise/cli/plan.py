"""`lengthwise plan`: the fewest engines that serve a workload within limits, or the policy for those you have."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import options_from, validated
from lengthwise.cli.output import LIMITS, AsJson, Report, need_report, note, show
from lengthwise.defaults import COMPARED_POLICIES, DEFAULT_ROUTER
from lengthwise.errors import InputError
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.planning import PlanReport, PricedPlans
from lengthwise.reports.progress import late_bar
from lengthwise.simulator.cluster import at_rate
from lengthwise.simulator.fleet import Fleet, find_engine
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.planning import CapacitySearch, candidates, plan_seeds
from lengthwise.simulator.sweep import Limits, SweepConfig
from lengthwise.specs import split_specs

_TRAFFIC = "Traffic"
_ENGINE = "llama-3-8b@a100"


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
        list[str] | None,
        typer.Option(
            help="The engine to count: MODEL@GPU, or a file of `lengthwise engine fit`; several, each with a --price, "
            f"to find the cheapest [default: {_ENGINE}]."
        ),
    ] = None,
    price: Annotated[
        list[float] | None,
        typer.Option(help="Your price of an engine for an hour, one for each --engine, in the same order."),
    ] = None,
    engines: Annotated[
        str,
        typer.Option(metavar="MIN..MAX|N", help="Range that is searched; or the engines you have, to choose a policy."),
    ] = "1..16",
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"Policies to compare, separated by commas [default: {','.join(COMPARED_POLICIES)}; for N engines "
            "those that suit the limits]."
        ),
    ] = None,
    router: Annotated[str, typer.Option(help="Router that chooses the engine of each request.")] = DEFAULT_ROUTER,
    predictor: Annotated[
        str | None,
        typer.Option(
            help="Predictor, as in `simulate`; `oracle` means TRUE LENGTHS [default: fast with prompts, else history]."
        ),
    ] = None,
    slo_ttft: Annotated[float | None, typer.Option(help="Largest TTFT in seconds.", rich_help_panel=LIMITS)] = None,
    slo_tpot: Annotated[float | None, typer.Option(help="Largest TPOT in seconds.", rich_help_panel=LIMITS)] = None,
    slo_e2e: Annotated[float | None, typer.Option(help="Largest E2E in seconds.", rich_help_panel=LIMITS)] = None,
    slo_per_token: Annotated[
        float | None, typer.Option(help="Largest E2E per output token in seconds.", rich_help_panel=LIMITS)
    ] = None,
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
    """Find the fewest engines that serve a trace within latency limits, or the policy for the engines you have.

    Every policy sees the same requests; the number of engines is found by bisection in the simulator. Traffic that is
    drawn (castillo, --cv) is drawn with 5 seeds, and the answer is enough in all of them; --seeds 1 is quicker.

    Example: `lengthwise plan azure2023_conv --slo-ttft 2 --slo-e2e 30 --engines 1..16 --report plan.html`

    With one number of engines the policies that suit the limits are simulated on them, and the verdict says which to
    use and what it costs: `lengthwise plan azure2023_conv --slo-ttft 2 --engines 4`

    With several engines and your own prices the verdict is the cheapest fleet and policy, per hour and per million
    output tokens: `lengthwise plan castillo --rate 20 --slo-ttft 2 --engine llama-3-8b@a100 --price 2
    --engine llama-3-8b@h100 --price 4`

    Exit code 1 if no policy attains the target with the most engines.
    """
    need_report(report)
    names, prices = engine or [_ENGINE], price or []
    _check_prices(names, prices)
    slo = LatencyLimits.given(slo_ttft, slo_tpot, slo_e2e, slo_per_token)
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"a rate of {rate:g}", field="rate", hint="give requests per second above 0")
    fewest, most = _range(engines)
    limited = {"max_num_seqs": fields.pop("max_num_seqs")}
    config = validated(SweepConfig, workload=source, fleet=names[0], limits=limited, seeds=seeds, **fields)
    ((drawn_from, planned),) = config.plans()
    spec = planned.fleet.engines[0]
    draw = drawn_from.draws(own_arrivals=rate is None, slots=spec.max_num_seqs, on_note=note)
    workloads = [at_rate(draw(each), rate) for each in planned.seeds]
    if slo == LatencyLimits.given(None, None, None, None) and not workloads[0].has_limits:
        hint = "give --slo-ttft, --slo-tpot, --slo-e2e or --slo-per-token, or a workload whose requests have limits"
        raise InputError("no limit", hint=hint)
    if seeds > 1 and workloads[0].content_hash == workloads[1].content_hash:
        workloads = workloads[:1]
    fixed = fewest == most
    policies = split_specs(policy) if policy is not None else list(COMPARED_POLICIES)
    if policy is None and fixed:
        policies = candidates(slo, own=workloads[0].has_limits)
    others = (
        Fleet(tuple(find_engine(name) for name in names[1:])).behind_gateway().limited_to(**limited).engines
        if names[1:]
        else ()
    )
    reports = []
    for each in (spec, *others):
        searches = [
            CapacitySearch(workload, each, slo, attainment, fewest, most, router, predictor) for workload in workloads
        ]
        with late_bar() as bar:
            plans = plan_seeds(searches, list(dict.fromkeys(policies)), bar)
            lacking = not fixed and any(plan.engines is None for plan in plans)
            reports.append(PlanReport(searches[0], plans, searches[0].without_queue() if lacking else None))
    found = PricedPlans(reports, prices) if prices else reports[0]
    drawn = str(config.seed) if len(workloads) == 1 else config.drawn_seeds
    simulated = ", ".join(each.name for each in (spec, *others))
    origin = Origin.here(seed=drawn, hardware=f"simulated {simulated}, on {this_machine()}")
    show(found.document(origin), report, as_json=as_json)
    if all(plan.engines is None for each in reports for plan in each.plans):
        raise typer.Exit(1)


def _check_prices(engines: list[str], prices: list[float]) -> None:
    if len(set(engines)) < len(engines):
        raise InputError("an engine is given twice", source="--engine", hint="name each once")
    if (prices or len(engines) > 1) and len(prices) != len(engines):
        hint = "give one --price for each --engine, in the same order"
        raise InputError(f"{len(engines)} engines and {len(prices)} prices", source="--price", hint=hint)
    for price in prices:
        if not 0 < price < math.inf:
            raise InputError(f"a price of {price:g}", source="--price", hint="give a number above 0")


def _range(text: str) -> tuple[int, int]:
    low, dots, high = text.partition("..")
    try:
        return int(low), int(high if dots else low)
    except ValueError:
        hint = "give a range such as 1..16, or the number of engines you have"
        raise InputError(f"'{text}'", field="engines", hint=hint) from None
