"""How fast: each module measures one part and prints its figures beside their targets."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:  # of any type
    """Add an option for each name: its default decides the type; values of a tuple are separated by commas."""
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true")
        elif isinstance(default, tuple):
            shown = ",".join(map(str, default))
            parser.add_argument(option, type=_list_of(type(default[0])), default=default, help=f"[{shown}]")
        else:
            shown = "" if default is None else "[%(default)s]"
            parser.add_argument(option, type=str if default is None else type(default), default=default, help=shown)


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(map(kind, text.split(",")))


def options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Read a benchmark's options (`add_options`); `--help` prints its description."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, **defaults)
    return parser.parse_args()


@dataclass(frozen=True)
class Figure:
    """A measured value and its target: at most `most`, or at least `least`."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None
    remark: str = ""

    def __str__(self) -> str:
        target = self.most if self.least is None else self.least
        missed = self.value > (self.most or self.value) or self.value < (self.least or self.value)
        verdict = "" if target is None else f"{target:>10,.0f}  {'MISSED' if missed else 'ok'}"
        return f"{self.name:<64}{self.value:>10,.1f}{verdict:<20}{self.remark}"


def cpu_microseconds(call: Callable[[], object], repeats: int = 1, rounds: int = 9) -> float:
    """CPU time of a call in the fastest of several rounds: other processes only add to it."""
    times = []
    for _ in range(rounds):
        start = time.process_time_ns()
        for _ in range(repeats):
            call()
        times.append((time.process_time_ns() - start) / repeats / 1e3)
    return min(times)
