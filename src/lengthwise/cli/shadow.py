"""`lengthwise shadow`: predict and log beside a running engine, and estimate what reordering would gain."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.bench.shadow_gain import shadow_document, study_shadow
from lengthwise.cli.output import AsJson, MaxNumSeqs, Wait, need_folder, show
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.service import known_predictor
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.progress import late_bar
from lengthwise.simulator import find_engine
from lengthwise.specs import split_specs
from lengthwise.traffic.shadow_log import read_log

app = typer.Typer(invoke_without_command=True, rich_markup_mode="markdown")

Engine = Annotated[
    str | None,
    typer.Option(
        help="Engine of the replay: MODEL@GPU or a file of `lengthwise engine fit` [default: fitted to the log]."
    ),
]
Policy = Annotated[str, typer.Option(help="Policies to compare with FCFS, separated by commas.")]


@app.callback()
def shadow(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="The running engine or server to proxy.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for clients; 0 takes any free port.")] = 8081,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    log: Annotated[
        Path | None, typer.Option(help="Log to write (JSON lines) [default: shadow-DATE-TIME.jsonl].")
    ] = None,
    predictor: Annotated[
        str, typer.Option(help="Length predictor: fast, default, none, or a model file (.lw).")
    ] = "fast",
    stream_usage: Annotated[
        bool, typer.Option(help="Request the token counts of streamed answers; off for engines without stream_options.")
    ] = True,
    wait: Wait = 0.0,
    engine: Engine = None,
    policy: Policy = "lengthwise",
    max_num_seqs: MaxNumSeqs = None,
) -> None:
    """Proxy a running engine, predict and log; the engine's order is not changed.

    Every request is passed on at once. Ctrl-C prints what a policy would have gained; `lengthwise shadow report LOG`
    prints it again. Neither prompts nor answers are logged.

    Example: `lengthwise shadow --url http://engine:8000 --port 8081`
    """
    if context.invoked_subcommand is not None:
        return
    if url is None:
        raise InputError("no engine is given", source="--url", hint="give one like http://127.0.0.1:8000")
    # Imported here because HTTP takes a second to import, and `report` does not use it.
    from lengthwise.client.client import engine_url, without_credentials
    from lengthwise.gateway.server import bind, check_engines, url_of
    from lengthwise.gateway.shadow import run_shadow

    # Invalid options are reported before traffic is logged.
    base, known = engine_url(url), known_predictor(predictor)
    policies = [make_policy(name).name for name in split_specs(policy)]
    if engine is not None:
        find_engine(engine)
    path = log or Path(time.strftime("shadow-%Y%m%d-%H%M%S.jsonl"))
    with contextlib.closing(bind(host, port)) as sock:
        check_engines([base], wait_s=wait)
        ready = f"shadow on {url_of(sock, host)} before {without_credentials(base)}, predictor {predictor}, log {path}"
        run_shadow(base, sock, path, predictor=known, stream_usage=stream_usage, on_ready=lambda: typer.echo(ready))
    typer.echo(f"log: {path}")
    try:
        _estimate(path, engine=engine, policies=policies, max_num_seqs=max_num_seqs)
    except InputError as error:  # too little traffic is not an error here: the log is written
        typer.echo(str(error))


@app.command()
def report(
    log: Annotated[Path, typer.Argument(help="A log of `lengthwise shadow`.")],
    engine: Engine = None,
    policy: Policy = "lengthwise",
    max_num_seqs: MaxNumSeqs = None,
    max_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens computed in a step.")] = None,
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="KV memory of the engine.")] = None,
    page: Annotated[Path | None, typer.Option("--report", help="Also write an HTML report with figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what a policy would have gained on the traffic of a log, which may be still open.

    Example: `lengthwise shadow report shadow.jsonl --engine engine.yaml --policy lengthwise,sjf`
    """
    need_folder(page, "--report", ".html")
    limits = {"max_num_batched_tokens": max_batched_tokens, "kv_tokens": kv_tokens, "max_num_seqs": max_num_seqs}
    _estimate(log, page, as_json=as_json, engine=engine, policies=split_specs(policy), **limits)


def _estimate(log: Path, page: Path | None = None, *, as_json: bool = False, **options: Any) -> None:
    """Show what policies would have gained; `options` are those of `study_shadow`."""
    with late_bar("reading the log") as bar:
        found = study_shadow(read_log(log), str(log), on_progress=bar, **options)
    origin = Origin.here(hardware=f"replay of {found.engine_url}, simulated on {this_machine()}")
    show(shadow_document(found, origin), page, as_json=as_json)
