"""`lengthwise engine`: the embedded engine alone, and `lengthwise engine fit`."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import options_from, retired_options, validated
from lengthwise.cli.output import MaxNumSeqs, need_folder
from lengthwise.client.client import engine_url
from lengthwise.client.scrape import fetch_engine_facts
from lengthwise.client.step_times import StepTimesPlan, measure_step_times
from lengthwise.errors import InputError
from lengthwise.predictors.service import RETIRED_MEMORY
from lengthwise.predictors.state_file import STATE_OFF
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import Table, print_tables
from lengthwise.simulator.fit import FittedCost, StepTimes, engine_spec, fit_cost, write_fitted
from lengthwise.simulator.step_log import EngineFacts, read_steps
from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions

app = typer.Typer(rich_markup_mode="markdown")
_STARTING = "starting vLLM (half a minute on a CPU) ..."


@app.callback(invoke_without_command=True)
@options_from(
    EngineOptions,
    without=["warm_predictor", "plugin", "compiled", "extra", "plugin_options"],
    defaults={"port": 8000},
    retired=retired_options({"memory": RETIRED_MEMORY}),
)
def engine(
    context: typer.Context,
    stock: Annotated[bool, typer.Option("--stock", help="Stock vLLM, without our scheduler.")] = False,
    steps: Annotated[Path | None, typer.Option("--steps", help="Write every step to this file (Parquet).")] = None,
    simulated: Annotated[
        str | None,
        typer.Option(
            "--simulated",
            metavar="FLEET",
            help="Engines of the simulator in real time, on --port and the ports after it.",
        ),
    ] = None,
    **fields: Any,
) -> None:
    """Run the embedded engine: vLLM with our scheduler inside, an OpenAI API on loopback.

    Without --model it serves SmolLM2-135M-Instruct, converted once into the user's cache directory, where its log is
    too. Ctrl-C stops it and everything it started.

    With --simulated no LLM runs: the simulator's engine answers in real time (docs/guides/engine.md),
    and of the other options only --host and --port count.

    Example: `lengthwise engine --policy srpt:c=0.8 --probe default --port 8000`
    """
    if context.invoked_subcommand is not None:
        return
    if simulated is not None:
        _serve_simulated(simulated, fields["host"], fields["port"])
        return
    for option, value in (("--steps", steps), ("--probe", fields["probe"])):
        if value is not None and stock:
            raise InputError(f"{option} with --stock", hint="it needs our scheduler: leave out one of them")
    need_folder(steps, "--steps")
    plugin_options = {} if steps is None else {"steps": str(steps.resolve())}
    options = validated(EngineOptions, plugin=not stock, plugin_options=plugin_options, **fields)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is stopped on the way out
    typer.echo(_STARTING, err=True)
    with EmbeddedEngine(options) as running:
        order = "policy fcfs (stock)" if stock else f"policy {options.policy}, predictor {options.predictor}"
        order += "" if options.probe is None else f", probe {options.probe}"
        typer.echo(f"engine ready at {running.url}/v1, {order}; log {running.log}")
        try:
            signal.pause()
        except KeyboardInterrupt:
            typer.echo("stopping", err=True)


def _serve_simulated(text: str, host: str, port: int) -> None:
    from lengthwise.client.simulated_server import listen, serve_engines
    from lengthwise.simulator.live import SimulatedFleet

    fleet = SimulatedFleet.parse(text)
    sockets = listen(len(fleet.engines), host, port)
    urls = ", ".join(f"http://{host}:{sock.getsockname()[1]}/v1" for sock in sockets)
    typer.echo(f"{fleet} simulated at {urls}, speed {fleet.options.speed:g}, policy {fleet.options.policy}")
    serve_engines(fleet, sockets)


@app.command()
def fit(
    out: Annotated[Path, typer.Option("--out", "-o", help="Engine file to write (YAML).")],
    url: Annotated[str | None, typer.Option(help="Measure this OpenAI endpoint, which must be otherwise idle.")] = None,
    steps: Annotated[
        Path | None, typer.Option(help="Fit a step log (docs/guides/engine.md): more accurate than --url.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name [default: the first that is served].")] = None,
    max_num_seqs: MaxNumSeqs = None,
    max_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the endpoint computes per step.")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="KV memory in tokens, if the endpoint does not report it.")
    ] = None,
    longest: Annotated[int, typer.Option(min=64, help="Tokens of the longest prompt that is sent.")] = 1024,
) -> None:
    """Fit a cost model to an engine and write it as an engine file for the simulator.

    The steps come from a log that the plug-in wrote (--steps) or from measuring an endpoint over HTTP (--url). With
    neither, the embedded engine is started, measured, and fitted to its step log: about two minutes on a CPU.

    Example: `lengthwise engine fit -o engine.yaml && lengthwise simulate castillo --load 0.9 --fleet engine.yaml`
    """
    if url is not None and steps is not None:
        raise InputError("both --url and --steps", hint="give one of them, or neither for the embedded engine")
    if steps is not None:
        times, facts = _logged(steps)
        origin = f"{len(times):,} steps of {facts.model} on {facts.engine}, from {steps.name}"
    elif url is not None:
        times, facts = _measured(url, model, max_num_seqs, max_batched_tokens, kv_tokens, longest)
        origin = f"{len(times):,} steps of {facts.model}, measured by a client of {facts.engine}"
    else:
        times, facts = _embedded(max_num_seqs or 16, longest)
        origin = f"{len(times):,} steps of {facts.model} on the embedded engine, {facts.engine}"
    fitted = fit_cost(times)
    every = fitted.shares[0]
    errors = f"error of a step {100 * every.median_error:.1f} % (median), {100 * every.p90_error:.1f} % (p90)"
    spec = engine_spec(out.stem, fitted.cost, facts)
    write_fitted(out, spec, f"Fitted by `lengthwise engine fit` on {origin};\n{errors}.")
    _show(fitted, origin, out)


def _logged(path: Path) -> tuple[StepTimes, EngineFacts]:
    table, facts = read_steps(path)
    return StepTimes.of(table), facts


def _measured(
    url: str, model: str | None, seqs: int | None, batched: int | None, kv_tokens: int | None, longest: int
) -> tuple[StepTimes, EngineFacts]:
    url = engine_url(url)
    facts = asyncio.run(
        fetch_engine_facts(url, model=model, kv_tokens=kv_tokens, max_num_seqs=seqs, max_num_batched_tokens=batched)
    )
    return _run(StepTimesPlan(url, model, longest, _batches(facts.max_num_seqs))), facts


def _embedded(seqs: int, longest: int) -> tuple[StepTimes, EngineFacts]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.parquet"
        options = EngineOptions(policy="fcfs", state=STATE_OFF, max_num_seqs=seqs, plugin_options={"steps": str(log)})
        typer.echo(_STARTING, err=True)
        with EmbeddedEngine(options) as engine:
            _run(StepTimesPlan(engine.url, longest=longest, batches=_batches(seqs), staggered=True))
        return _logged(log)


def _batches(seqs: int) -> tuple[int, ...]:
    return tuple(size for size in (1, 2, 4, 8, 16) if size <= seqs)


def _run(plan: StepTimesPlan) -> StepTimes:
    with late_bar() as bar:
        return asyncio.run(measure_step_times(plan, lambda share: bar("measuring steps", share)))


def _show(fitted: FittedCost, origin: str, out: Path) -> None:
    coefficients = [[name, f"{1e3 * value:.6g}"] for name, value in asdict(fitted.cost).items()]
    errors = [
        [
            share.kind,
            f"{share.steps:,}",
            f"{share.seconds:.1f}",
            *(f"{100 * error:.1f} %" for error in (share.median_error, share.p90_error)),
            f"{100 * share.total_error:+.1f} %",
        ]
        for share in fitted.shares
    ]
    notes = [
        f"{origin}; written to {out}",
        f"median and p90 errors are of the robust fit; all coefficients were then raised by {fitted.raised - 1:.1%},",
        "so that the total time of all steps matches, stalls included",
    ]
    print_tables(
        [
            Table("a step takes, milliseconds", ["coefficient", "fitted"], coefficients),
            Table("errors", ["steps", "count", "seconds", "median", "p90", "total"], errors, notes),
        ]
    )
