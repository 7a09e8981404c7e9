"""The time of a machine that others use too: it stands still while a step stalls, and runs ahead while one is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from lengthwise.engines.fit import StepTimes

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from lengthwise.simulator import StepCost

    Floats = NDArray[np.float64]

_FAR: Final = 1e9  # seconds: before the first step and after the last, machine and clock run alike


@dataclass(frozen=True, eq=False)
class MachineTime:
    """Moments by the clock, and the same moments by the machine; both rise.

    In a step as much of the machine's time passes as a cost model gives the step; between steps, as by the clock.
    """

    clock: Floats
    machine: Floats

    @classmethod
    def of(cls, log: pa.Table, cost: StepCost, last_end: float) -> Self:
        """From a log of steps; `last_end` is when, by the clock that is used here, its last step ended."""
        begin, took = log["start_s"].to_numpy(), log["seconds"].to_numpy()
        begin = begin - (begin[-1] + took[-1]) + last_end
        clock = np.stack([begin, begin + took], axis=1).ravel()
        passed = np.zeros(len(clock))
        passed[1::2] = StepTimes.of(log).at(cost)
        passed[2::2] = np.maximum(0.0, np.diff(clock)[1::2])
        machine = clock[0] + np.cumsum(passed)
        return cls(
            np.concatenate([[clock[0] - _FAR], clock, [clock[-1] + _FAR]]),
            np.concatenate([[machine[0] - _FAR], machine, [machine[-1] + _FAR]]),
        )

    def at(self, clock: Floats) -> Floats:
        """What the machine's time is when the clock's is this."""
        return np.interp(clock, self.clock, self.machine)

    def on_the_clock(self, machine: Floats) -> Floats:
        """The inverse of `at`."""
        return np.interp(machine, self.machine, self.clock)
