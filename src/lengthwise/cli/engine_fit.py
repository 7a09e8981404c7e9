"""`lengthwise engine fit`: fit a cost model to an engine's steps."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import Table, print_tables

if TYPE_CHECKING:
    from lengthwise.engines.endpoint_probe import ProbePlan
    from lengthwise.engines.fit import FittedCost, StepTimes
    from lengthwise.engines.steps import EngineFacts

Url = Annotated[str | None, typer.Option("--url", help="Probe this OpenAI endpoint; it must be otherwise idle.")]
Steps = Annotated[
    Path | None, typer.Option("--steps", help="Fit a step log (docs/guides/engine.md): more accurate than probing.")
]
Model = Annotated[str | None, typer.Option("--model", help="Model name [default: the first that is served].")]
Kv = Annotated[
    int | None, typer.Option("--kv-tokens", min=1, help="KV memory in tokens, if the endpoint does not report it.")
]
Batched = Annotated[
    int | None, typer.Option("--max-batched-tokens", min=1, help="Tokens that the endpoint computes per step.")
]
Seqs = Annotated[int | None, typer.Option("--max-num-seqs", min=1, help="Requests that run at once in the engine.")]
Longest = Annotated[int, typer.Option(min=64, help="Tokens of the longest probe prompt.")]


def fit(
    out: Annotated[Path, typer.Option("--out", "-o", help="Engine file to write (YAML).")],
    url: Url = None,
    steps: Steps = None,
    model: Model = None,
    max_num_seqs: Seqs = None,
    max_batched_tokens: Batched = None,
    kv_tokens: Kv = None,
    longest: Longest = 1024,
) -> None:
    """Fit a cost model to an engine and write it as an engine file for the simulator.

    The steps come from a log that the plug-in wrote (--steps) or from probing an endpoint over HTTP (--url). With
    neither, the embedded engine is started, probed, and fitted to its step log: about two minutes on a CPU.

    Example: `lengthwise engine fit -o engine.yaml && lengthwise simulate castillo --load 0.9 --fleet engine.yaml`
    """
    from lengthwise.engines.fit import engine_spec, fit_cost, write_fitted

    if url is not None and steps is not None:
        raise InputError("both --url and --steps", hint="give one of them, or neither for the embedded engine")
    if steps is not None:
        times, facts = _logged(steps)
        origin = f"{len(times):,} steps of {facts.model} on {facts.engine}, from {steps.name}"
    elif url is not None:
        times, facts = _probed(url, model, max_num_seqs, max_batched_tokens, kv_tokens, longest)
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
    from lengthwise.engines.fit import StepTimes
    from lengthwise.engines.steps import read_steps

    table, facts = read_steps(path)
    return StepTimes.of(table), facts


def _probed(
    url: str, model: str | None, seqs: int | None, batched: int | None, kv_tokens: int | None, longest: int
) -> tuple[StepTimes, EngineFacts]:
    from lengthwise.engines.client import engine_url
    from lengthwise.engines.endpoint_probe import ProbePlan
    from lengthwise.engines.engine_metrics import fetch_engine_facts

    url = engine_url(url)
    facts = asyncio.run(
        fetch_engine_facts(url, model=model, kv_tokens=kv_tokens, max_num_seqs=seqs, max_num_batched_tokens=batched)
    )
    sizes = tuple(size for size in (1, 2, 4, 8, 16) if size <= facts.max_num_seqs)
    return _run(ProbePlan(url, model, longest, sizes)), facts


def _embedded(seqs: int, longest: int) -> tuple[StepTimes, EngineFacts]:
    from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
    from lengthwise.engines.endpoint_probe import ProbePlan

    sizes = tuple(size for size in (1, 2, 4, 8, 16) if size <= seqs)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.parquet"
        options = EngineOptions(policy="fcfs", max_num_seqs=seqs, plugin_options={"steps": str(log)})
        typer.echo("starting vLLM (half a minute on a CPU) ...", err=True)
        with EmbeddedEngine(options) as engine:
            _run(ProbePlan(engine.url, longest=longest, batches=sizes, staggered=True))
        return _logged(log)


def _run(plan: ProbePlan) -> StepTimes:
    from lengthwise.engines.endpoint_probe import probe

    with late_bar() as bar:
        return asyncio.run(probe(plan, lambda share: bar("probing", share)))


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
