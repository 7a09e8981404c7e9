"""The log of runs: a JSON line for each study that was run, with its CPU time, date and machine.

`python -m experiments run` appends to `--log`, and `python -m experiments log COMMAND` logs what is no study.
`results/log.jsonl` is kept with the code: estimates of how long a study takes and the dates of docs/studies/papers.md
come from it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lengthwise.errors import InputError
from lengthwise.reports.page import this_machine
from lengthwise.version import package_version
from lengthwise.workloads.traces import SAMPLE_ONLY

KEPT: Final = Path(__file__).parent / "results" / "log.jsonl"


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of a study."""

    study: str
    """Its name; of what is no study the command."""
    quick: bool = False
    settings: Sequence[str] = ()
    """What `--set` and `--measure` replace in the grid."""
    cpu_s: float | None
    """Of all processes; None where simulations ran on a Ray cluster."""
    seconds: float
    cached: int
    """Simulations of earlier runs: their time is not in `cpu_s`."""
    computed: int
    answer: str
    notes: Sequence[str] = ()
    date: str = field(default_factory=_now)
    machine: str = field(default_factory=this_machine)
    version: str = field(default_factory=package_version)

    @property
    def complete(self) -> bool:
        """Whether it is a run of the declared grid on the whole data."""
        return not self.settings and SAMPLE_ONLY not in self.notes

    @property
    def measured(self) -> bool:
        """Whether `cpu_s` is the time of the declared grid from nothing."""
        return self.complete and self.cpu_s is not None and not self.cached


def read(path: Path) -> list[Entry]:
    """Return the entries of a log, oldest first; none where there is no file."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return [Entry(**json.loads(line)) for line in lines if line]
    except (ValueError, TypeError) as error:
        raise InputError(
            "is not a log of runs", source=path, hint="move it away; the next run writes a new one"
        ) from error


def append(path: Path, entry: Entry) -> None:
    """Add an entry at the end."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(entry), ensure_ascii=False) + "\n")


def last(entries: Iterable[Entry], study: str, *, quick: bool = False) -> Entry | None:
    """Return the last complete run of a study."""
    return next(
        (each for each in reversed([*entries]) if each.study == study and each.quick is quick and each.complete), None
    )


def last_measured(entries: Iterable[Entry], study: str, *, quick: bool = False) -> Entry | None:
    """Return the last complete run of a study without cached simulations."""
    return last([each for each in entries if each.measured], study, quick=quick)


def run_command(command: str) -> Entry:
    """Run a command that is no study and return its entry, whose answer is what it printed last.

    `lengthwise` and `python` are those of this environment; variables such as $LENGTHWISE_DATA are filled in.
    """
    try:
        words = [os.path.expandvars(word) for word in shlex.split(command)]
    except ValueError as error:
        raise InputError(f"'{command}': {error}", hint="give a command as it is typed in a shell") from None
    if words[:1] == ["python"]:
        words[0] = sys.executable
    elif words[:1] == ["lengthwise"]:
        words[:1] = [sys.executable, "-m", "lengthwise"]
    else:
        raise InputError(f"'{command}'", hint="give a command that begins with 'lengthwise' or 'python'")
    began, cpu_began, printed = time.monotonic(), cpu_seconds(), ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  (the caller's command)
        for line in process.stdout or ():
            print(line, end="", flush=True)  # noqa: T201
            printed = line.strip() or printed
    if process.returncode:
        raise InputError(f"'{command}' ended with exit code {process.returncode}", hint="it is not logged")
    seconds, cpu_s = round(time.monotonic() - began, 1), round(cpu_seconds() - cpu_began, 1)
    return Entry(study=command, cpu_s=cpu_s, seconds=seconds, cached=0, computed=0, answer=printed)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children; of running children on Linux only."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + sum(map(_of_process, _children()))


def _children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def _of_process(number: int) -> float:
    try:
        # The name ends with the last parenthesis; utime, stime, cutime and cstime are the fields 14 to 17.
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
