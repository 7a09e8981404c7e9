"""A pace that several engines on one machine can keep: what steps took while all of them were busy, and some more.

It is found once, before anything is measured, and kept in the folder of results: every cell has the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from lengthwise.engines.fit import StepTimes, fit_cost
from lengthwise.engines.pace import pace_cost
from lengthwise.engines.steps import read_steps
from lengthwise.errors import InputError
from lengthwise.simulator.costs import StepCost
from lengthwise.workloads.files import atomic_path

PACE_REQUESTS: Final = 80
"""Of each engine, all there at once."""
SLACK: Final = 1.2
"""How much longer than that a step may take: a shared machine is slower at some hours, and predictors run beside."""
_FILE: Final = "pace.json"


def known_pace(folder: Path) -> StepCost | None:
    """The pace of a folder of results; None where none was found yet."""
    path = folder / _FILE
    try:
        return pace_cost(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError("cannot be read", source=path, hint="begin in another --out") from error


def write_pace(folder: Path, engines: Sequence[Path]) -> StepCost:
    """From the steps of engines that were busy together, each in a folder of its own."""
    times = StepTimes.joined([StepTimes.of(read_steps(each / "steps.parquet")[0]) for each in engines])
    cost = fit_cost(times, math.inf).cost
    slow = StepCost(**{name: SLACK * seconds for name, seconds in asdict(cost).items()})
    with atomic_path(folder / _FILE) as path:
        path.write_text(json.dumps(asdict(slow), indent=2) + "\n", encoding="utf-8")
    return slow
