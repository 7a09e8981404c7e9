"""`lengthwise simulate`: what policies would do to a workload on a fleet, without a GPU."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from lengthwise.cli.workload import note
from lengthwise.errors import InputError
from lengthwise.policies import Policy, make_policy
from lengthwise.reports.progress import late_bar
from lengthwise.reports.simulation import policy_table, ratios_to_fcfs
from lengthwise.reports.tables import print_tables, to_json
from lengthwise.simulator import Capacity, Fleet, Outcome, measure_capacity
from lengthwise.simulator import simulate as run
from lengthwise.simulator.oracles import find_predictor
from lengthwise.workloads import Workload, castillo_workload, load_castillo, load_workload, redraw, replay
from lengthwise.workloads.atomic import atomic_path
from lengthwise.workloads.castillo import PACKAGED

_CASTILLO = "castillo"
_CASTILLO_REQUESTS = 1000


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
    rate: Annotated[
        float | None, typer.Option(help="Requests per second; the workload's own arrivals if not given.")
    ] = None,
    predictor: Annotated[
        str, typer.Option(help="What policies believe: `oracle` (true lengths) or `none`.")
    ] = "oracle",
    requests: Annotated[int | None, typer.Option(help="The first so many; castillo: 1,000 if not given.")] = None,
    llm: Annotated[str, typer.Option(help="castillo: whose answers.")] = "llama-3.1-8b",
    seed: Annotated[int, typer.Option(help="Of whatever is drawn: prompts, lengths, arrivals.")] = 0,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests that run at once in an engine; vLLM's default for the GPU.")
    ] = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens computed in a step; vLLM's default for the GPU.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write one row per request and policy: .parquet.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Serve a workload on simulated engines and compare policies on the same arrivals and lengths.

    Example: `lengthwise simulate castillo --rate 8 --policy fcfs,sjf --max-num-seqs 32`
    """
    policies = _policies(policy)
    engines = Fleet.parse(fleet).limited_to(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_batched_tokens)
    find_predictor(predictor)
    _check_writable(out)
    workload = _workload(source, rate=rate, requests=requests, llm=llm, seed=seed)
    outcomes, capacity = _run(workload, engines, policies, predictor)
    if out is not None:
        with atomic_path(out) as path:
            pq.write_table(pa.concat_tables(outcome.to_table() for outcome in outcomes), path)
    setting = {"fleet": str(engines), "predictor": predictor, "seed": seed}
    if as_json:
        typer.echo(to_json(_facts(workload, outcomes, capacity, setting)))
    else:
        _print(workload, outcomes, capacity, setting)


def _run(workload: Workload, fleet: Fleet, policies: list[Policy], predictor: str) -> tuple[list[Outcome], Capacity]:
    """Capacity first, then each policy on the same workload."""
    runs = len(policies) + 1
    with late_bar() as report:
        capacity = measure_capacity(workload, fleet, on_progress=lambda share: report("capacity", share / runs))
        outcomes = []
        for done, policy in enumerate(policies, start=1):

            def progress(share: float, name: str = policy.name, done: int = done) -> None:
                report(name, (done + share) / runs)

            outcomes.append(run(workload, fleet, policy, predictor=predictor, on_progress=progress))
    return outcomes, capacity


def _workload(source: str, *, rate: float | None, requests: int | None, llm: str, seed: int) -> Workload:
    if source == _CASTILLO:
        samples = load_castillo(split="test")
        n = _CASTILLO_REQUESTS if requests is None else requests
        workload = castillo_workload(samples, llm, requests=n, rate=_needed(rate, source), seed=seed)
        if samples.origin == PACKAGED:
            note("LENGTHWISE_DATA holds no CASTILLO; using the small sample that ships with the package")
        return workload
    if get_close_matches(source, [_CASTILLO], cutoff=0.8) and not Path(source).exists():
        raise InputError(f"no workload is called '{source}'", hint=f"did you mean {_CASTILLO}?")
    # A table of lengths alone is read as a batch, so that what is missing can be told in one way.
    workload = load_workload(source, need_arrivals=False)
    if workload.has_arrivals:
        return replay(workload, requests=requests, rate=rate)
    n = len(workload) if requests is None else requests
    return redraw(workload, requests=n, rate=_needed(rate, source), seed=seed)


def _needed(rate: float | None, source: str) -> float:
    if rate is None:
        raise InputError("has no arrivals of its own", source=source, hint="say how fast with --rate")
    return rate


def _policies(text: str) -> list[Policy]:
    return [make_policy(name) for name in dict.fromkeys(part.strip() for part in text.split(","))]


def _check_writable(out: Path | None) -> None:
    """Before the work, not after it."""
    if out is None:
        return
    if out.suffix != ".parquet":
        raise InputError("is no Parquet file's name", source=out, hint="let it end in .parquet")
    if not out.parent.is_dir():
        raise InputError("its folder does not exist", source=out, hint=f"make {out.parent} first")


def _facts(workload: Workload, outcomes: list[Outcome], capacity: Capacity, setting: dict[str, Any]) -> dict[str, Any]:
    summaries = {outcome.policy: outcome.summary for outcome in outcomes}
    return {
        "workload": workload.name,
        "content_hash": workload.content_hash,
        "requests": len(workload),
        "router": "round_robin",
        **setting,
        "load": {
            "offered_per_s": workload.rate,
            "capacity_per_s": capacity.requests_per_s,
            "load": capacity.load(workload.rate),
            "slots": capacity.slots,
            "steady": capacity.steady,
        },
        "policies": {
            name: {**summary.to_dict(), "over_fcfs": ratios_to_fcfs(summaries, name)}
            for name, summary in summaries.items()
        },
    }


def _print(workload: Workload, outcomes: list[Outcome], capacity: Capacity, setting: dict[str, Any]) -> None:
    load = (
        f"load {capacity.load(workload.rate):.2f}: {workload.rate:.3g} requests/s offered, "
        f"{capacity.requests_per_s:.3g} possible under backlog (FCFS, round robin); "
        f"n {len(workload):,}, slots {capacity.slots:,}, seed {setting['seed']}, run to drain"
    )
    notes = [load, f"beliefs: {setting['predictor']}; x FCFS: the policy's latency over FCFS's, below 1 is better"]
    if not capacity.steady:
        notes.append(
            "capacity is a lower bound: fewer than two requests per slot make no backlog; "
            "give more --requests or a smaller --max-num-seqs"
        )
    summaries = {outcome.policy: outcome.summary for outcome in outcomes}
    print_tables([policy_table(summaries, title=f"{workload.name} on {setting['fleet']}", notes=notes)])
