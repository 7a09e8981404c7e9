"""`lengthwise bench`: measure policies on a running vLLM, in turns on the same traffic."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.cli.output import SloE2e, SloPerToken, SloTpot, SloTtft, need_report, show
from lengthwise.defaults import DEFAULT_POLICY
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.simulator.metrics import LatencyLimits

if TYPE_CHECKING:
    from lengthwise.bench.run import BenchPlan
    from lengthwise.bench.store import BenchStore

_SLO = LatencyLimits()
_TOKEN = "LENGTHWISE_BENCH_TOKEN"  # noqa: S105  (the name of a variable)


def bench(
    url: Annotated[str | None, typer.Option(help="A running vLLM [default: start the embedded engine].")] = None,
    token: Annotated[str | None, typer.Option(envvar=_TOKEN, help="The bench token that the server has.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="The server's API key.")] = None,
    policy: Annotated[str, typer.Option(help="Policies to compare with fcfs.")] = DEFAULT_POLICY,
    predictor: Annotated[
        str,
        typer.Option(
            help="Their predictors: fast, default, none, a model file; +probe adds the probe; oracle sends true "
            "lengths, inverted calls the longest the shortest."
        ),
    ] = "default",
    episode: Annotated[str, typer.Option(help="Kinds of episodes: burst, steady:0.7, trace, backlog.")] = "burst",
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each kind; every policy runs once in a block.")] = 8,
    noise: Annotated[bool, typer.Option(help="Also measure fcfs against fcfs: the noise of the machine.")] = False,
    requests: Annotated[int | None, typer.Option(min=2, help="Requests per episode [default: 12 x slots].")] = None,
    llm: Annotated[str | None, typer.Option(help="LLM of CASTILLO whose lengths are used.")] = None,
    workload: Annotated[str | None, typer.Option(help="Trace with prompts and lengths, instead of CASTILLO.")] = None,
    scale: Annotated[float | None, typer.Option(help="Factor on lengths [default: 1; embedded 0.15].")] = None,
    cap: Annotated[int | None, typer.Option(min=1, help="Longest answer [default: 2048; embedded 256].")] = None,
    own_answers: Annotated[
        bool,
        typer.Option("--own-answers", help="Let the LLM end its answers, sampled with the same seeds in each arm."),
    ] = False,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the embedded engine.")] = 4,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the embedded engine's LLM.")] = False,
    hours: Annotated[float | None, typer.Option(help="Start no block that would end later than this.")] = None,
    machine: Annotated[str | None, typer.Option(help="What the server runs on, for the report.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of prompts, lengths and arrivals.")] = 0,
    slo_ttft: SloTtft = _SLO.ttft_s,
    slo_tpot: SloTpot = _SLO.tpot_s,
    slo_e2e: SloE2e = None,
    slo_per_token: SloPerToken = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results; the command resumes.")] = Path(
        "out/bench"
    ),
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report.")] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Only report what is in --out.")] = False,
    also: Annotated[
        list[Path] | None, typer.Option(help="Report the blocks of this folder too: same server, other traffic.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure what a policy gains on a real vLLM: policies take turns on one engine, on the same traffic.

    The server runs our scheduler and was started with a bench token; its policy is switched between episodes, prefix
    cache and everything learned are cleared, and its own policy returns at the end, also after Ctrl-C. Ratios are
    taken within a block, in which every policy serves the same requests. Keep other clients away meanwhile.

    Server: `LENGTHWISE_BENCH_TOKEN=SECRET vllm serve MODEL --scheduler-cls lengthwise.vllm.LengthwiseScheduler`

    Example: `lengthwise bench --url http://127.0.0.1:8000 --token SECRET --policy lengthwise,sjf --report out.html`

    With --own-answers, `--predictor default+probe` (or `+probe:FILE.lw`) refines predictions by the LLM's hidden
    states. A server must report them (`lengthwise engine --probe`); the embedded engine does.

    Exit code 130 after Ctrl-C.
    """
    # HTTP and predictors take seconds to import.
    from lengthwise.bench.analysis import analyse
    from lengthwise.bench.episodes import DEFAULT_LLM, Kind, TrafficPlan, arms_of
    from lengthwise.bench.run import BenchPlan
    from lengthwise.bench.store import BenchStore, read_measured

    need_report(report)
    limits = LatencyLimits.given(slo_ttft, slo_tpot, slo_e2e, slo_per_token)
    store = BenchStore(out)
    if not no_run:
        if url is not None and token is None:
            raise InputError("no bench token", source="--token", hint=f"give the server's, or set {_TOKEN}")
        embedded = url is None
        traffic = TrafficPlan(
            llm=None if workload is not None else (llm or DEFAULT_LLM),
            scale=scale if scale is not None else 0.15 if embedded and workload is None and not own_answers else 1.0,
            cap=cap if cap is not None else 256 if embedded else 2048,
            longest_prompt=256 if embedded else 1024,  # a CPU computes a prompt at some 150 tokens/s
            workload=workload,
            seed=seed,
            own_answers=own_answers,
        )
        plan = BenchPlan(
            kinds=[Kind.of(name) for name in _names(episode)],
            arms=arms_of(_names(policy), _names(predictor), noise=noise),
            blocks=blocks,
            traffic=traffic,
            requests=requests,
            limit_s=None if hours is None else 3600 * hours,
            machine=machine,
        )
        _run(plan, store, url, token, api_key, slots, compiled=compiled)
    measured = read_measured(store, *map(BenchStore, also or ()))
    result = analyse(measured, limits)
    from lengthwise.bench.report import bench_document, machine_of
    from lengthwise.reports.page import Origin

    origin = Origin.here(seed=result.settings["traffic"]["seed"], hardware=machine_of(result))
    show(bench_document(result, measured, origin), report, as_json=as_json)


def _run(
    plan: BenchPlan,
    store: BenchStore,
    url: str | None,
    token: str | None,
    api_key: str | None,
    slots: int,
    *,
    compiled: bool,
) -> None:
    from lengthwise.bench.run import BenchProgress, embedded_server, run_bench

    # SIGTERM is the same orderly end as Ctrl-C, also in a background job, where a shell has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with store.locked(), late_bar() as bar:
        progress = BenchProgress(lambda text: typer.echo(text, err=True), bar)
        server: AbstractContextManager[tuple[str, str]] = (
            embedded_server(store, slots, compiled=compiled, probes=plan.probes)
            if url is None
            else nullcontext((url, token or ""))
        )
        with server as (address, secret):
            try:
                asyncio.run(run_bench(plan, store, address, secret, progress, api_key))
            except KeyboardInterrupt:
                typer.echo("stopped; the server has its own policy again; the same command resumes", err=True)
                raise typer.Exit(130) from None


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InputError(f"'{text}' names nothing", hint="give names separated by commas")
    return names
