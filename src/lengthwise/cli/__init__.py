"""The command line: one thin module per command, imported when the command is called."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command, get_group

from lengthwise.errors import InputError, missing_extra
from lengthwise.version import package_version

__all__ = ["app", "main"]

# Name and short help of every command, by panel, in the order of `lengthwise --help`. The command `x` is
# `lengthwise.cli.x.app` where that module has one (a group), else its function `x`. `--help` imports none of them.
PANELS = {
    "See it": {
        "demo": "Watch first come, first served race against predicted lengths: no GPU, no LLM, in the browser.",
    },
    "Serve": {
        "serve": "Run the gateway: an OpenAI-compatible proxy that routes and orders by predicted length.",
        "keys": "Make, list and remove API keys for the gateway.",
        "batch": "Answer a file of requests in OpenAI's batch format, the longest first.",
        "engine": "Run the embedded vLLM engine with the length-aware scheduler, or fit its cost model.",
    },
    "Simulate and plan": {
        "simulate": "Compare policies and routers on a simulated fleet, on the same arrivals and lengths.",
        "sweep": "Run a grid of simulations from a YAML file, in parallel and cached.",
        "plan": "Find the fewest engines that serve a trace within latency limits.",
        "policies": "List the policies, one line each.",
        "routers": "List the routers, one line each.",
        "explain": "Explain why a simulated request was sent to its engine.",
        "report": "Show or compare stored runs, or estimate what a policy would gain on logged traffic.",
    },
    "Measure": {
        "replay": "Send a workload to a running engine or gateway and measure latency.",
        "bench": "Measure policies on a real engine.",
        "collect": "Collect answer lengths from a running engine.",
    },
    "Predict": {
        "predict": "Predict how long an LLM's answer to a prompt will be.",
        "evaluate": "Score a predictor, or what a gateway has predicted, against baselines.",
        "adapt": "Adapt a predictor to a new LLM, or to the traffic of a gateway.",
        "train": "Train an encoder predictor.",
        "probe": "Train and evaluate the hidden-state probe (TRAIL).",
    },
    "Data": {
        "workload": "Create a workload file, or describe one.",
        "traces": "List, show and convert traces.",
        "lengths": "Fit distributions to observed answer lengths.",
    },
    "Installation": {
        "doctor": "Show what is installed, what is missing, and what would keep a server from starting.",
    },
}
RETIRED = {"shadow": "use `lengthwise serve --engine URL --observe --log DIR`, then `lengthwise report DIR`"}
_CREATE = "castillo --llm llama-3.1-8b --rate 8 -o w.parquet"
MEANT = {
    "": {
        "start": "serve", "run": "serve", "gateway": "serve", "proxy": "serve", "vllm": "engine", "watch": "demo",
        "race": "demo", "sim": "simulate", "grid": "sweep", "capacity": "plan", "compare": "report", "load": "replay",
        "measure": "bench", "guess": "predict", "score": "evaluate", "accuracy": "evaluate", "learn": "adapt",
        "create": "workload", "generate": "workload", "check": "doctor", "install": "doctor", "predictors": "predict",
        "version": "--version", "help": "--help",
    },
    "workload": {
        **dict.fromkeys(("create", "make", "new", "generate", "draw"), _CREATE),
        **dict.fromkeys(("show", "info", "stats", "summary"), "describe"),
    },
    "keys": {
        **dict.fromkeys(("create", "make", "new", "generate"), "add"),
        **dict.fromkeys(("delete", "rm", "revoke"), "remove"),
        **dict.fromkeys(("show", "ls"), "list"),
    },
    "traces": {"ls": "list", "get": "show", "describe": "show", "export": "convert"},
}  # fmt: skip
"""What is meant by words that are no command, by the group in which they are given."""
COMMANDS = {name: text for commands in PANELS.values() for name, text in commands.items()}


def _load(name: str) -> Any:  # the command's class is Typer's private one
    command: Any
    module = import_module(f"lengthwise.cli.{name}")
    if hasattr(module, "app"):
        module.app.info.cls = _Group
        command = get_group(module.app)
    else:
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
        single.command(name)(getattr(module, name))
        command = get_command(single)
    command.name = name
    return command


def _placeholder(name: str) -> Any:
    """Return a command that has a name and a help text only, for `--help` and shell completion."""
    single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    panel = next(title for title, commands in PANELS.items() if name in commands)
    single.command(name, help=COMMANDS[name], rich_help_panel=panel)(lambda: None)
    return get_command(single)


def _hide_types_of_flags() -> None:
    """Let the help show no `<bool>` behind a flag; Typer has no setting for that."""
    shown: Any = getattr(TyperOption, "display_type_rich", None)
    if shown is not None:
        replacement: Any = lambda option, ctx: None if option.is_flag else shown(option, ctx)  # noqa: E731
        TyperOption.display_type_rich = replacement  # type: ignore[method-assign]


_hide_types_of_flags()


def _suggestion(word: str, group: str, commands: Iterable[str]) -> str:
    """Return the question which command is meant, by its meaning, else by its letters; empty where none is near."""
    path = " ".join(filter(None, ("lengthwise", group)))
    meant = MEANT.get(group, {}).get(word.lower())
    near = [meant] if meant else get_close_matches(word.lower(), commands, n=1, cutoff=0.7)
    return f" Did you mean `{path} {near[0]}`?" if near else ""


class _Group(TyperGroup):
    """Names all of its commands where there is none of a name, and the one that is meant where that is known."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            *names, last = self.commands
            known = f"There are {', '.join(names)} and {last}." if names else f"There is {last}."
            ctx.fail(f"No such command '{args[0]}'.{_suggestion(args[0], str(ctx.info_name), self.commands)} {known}")
        return super().resolve_command(ctx, args)


class _LazyGroup(TyperGroup):
    """Imports a command when it is called, and reports user errors as one line with exit code 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _placeholder(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in RETIRED:
            typer.echo(f"error: there is no `lengthwise {args[0]}` any more; {RETIRED[args[0]]}", err=True)
            raise typer.Exit(2)
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command '{args[0]}'.{_suggestion(args[0], '', COMMANDS)}")
        name, command, rest = super().resolve_command(ctx, args)
        ctx.invoked_subcommand = name  # for `invoke`, where the import fails
        return name, None if command is None else _load(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (InputError, ModuleNotFoundError) as error:
            # The commands that speak HTTP need `serve`, which brings pyarrow too.
            over_http = ctx.invoked_subcommand in {**PANELS["See it"], **PANELS["Serve"], **PANELS["Measure"]}
            prefer = "serve" if over_http else "sim"
            cause = error if isinstance(error, InputError) else missing_extra(error, prefer)
            if cause is None:
                raise
            typer.echo(f"error: {cause}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="LLM serving that predicts answer lengths and schedules by them.",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"lengthwise {package_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    sys.exit(app())
