"""The command line: one thin file per command, nothing decided here."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lengthwise import __version__
from lengthwise.cli import (
    adapt,
    bench,
    collect,
    describe,
    doctor,
    engine,
    evaluate,
    explain,
    lengths,
    predict,
    probe,
    replay,
    reproduce,
    serve,
    shadow,
    simulate,
    sweep,
    theory,
    traces,
    train,
    workload,
)
from lengthwise.errors import InputError

__all__ = ["app", "main"]


class _Group(TyperGroup):
    """Turns a person's mistake into one line on stderr and exit code 2; everything else stays loud."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  (the context's class is Typer's private one)
        try:
            return super().invoke(ctx)
        except InputError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="LLM serving that knows how long an answer will be.",
)
app.command()(serve.serve)
app.add_typer(engine.app, name="engine")
app.command()(simulate.simulate)
app.command()(sweep.sweep)
app.command()(explain.explain)
app.command()(theory.theory)
app.command()(replay.replay)
app.command()(predict.predict)
app.command()(train.train)
app.add_typer(probe.app, name="probe")
app.command()(adapt.adapt)
app.command()(evaluate.evaluate)
app.command()(collect.collect)
app.add_typer(bench.app, name="bench")
app.add_typer(shadow.app, name="shadow")
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(workload.app, name="workload")
workload.app.command()(describe.describe)
app.add_typer(traces.app, name="traces")
app.add_typer(lengths.app, name="lengths")
app.command()(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lengthwise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    sys.exit(app())
