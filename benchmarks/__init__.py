"""How fast: each module measures one part and prints its figures beside their targets."""

import time
from collections.abc import Callable
from dataclasses import dataclass


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
