"""What a router takes for a request, as it was measured: never the clock of the machine that simulates.

`python -m benchmarks.routing --write` measures it on ReAct traffic and writes `routing_times.json`, beside this file:
microseconds of CPU time by router and number of engines, for the choice and for all it is told of the request later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.routers import ROUTERS

FILE: Final = Path(__file__).with_name("routing_times.json")


def measured_s(router: str, engines: int) -> float:
    """Seconds of a router, named with or without parameters.

    Between numbers of engines that were measured: linear in their logarithms. Beyond them: the nearest.
    """
    known = routing_times()["us"][router.partition(":")[0]]
    places = np.log([float(count) for count in known])
    return 1e-6 * float(np.interp(np.log(engines), places, list(known.values())))


@cache
def routing_times() -> dict[str, Any]:
    """All that was measured: `command`, `processor`, `traffic`, and `us` by router and engines."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def charged(routers: Iterable[str], engines: int, given: Mapping[str, float] | float | None = None) -> dict[str, float]:
    """Seconds by router, without parameters: microseconds that are given, to all or by name, else what was measured.

    One engine needs no router, and so none is charged unless it is given.
    """
    names = [router.partition(":")[0] for router in routers]
    if isinstance(given, (int, float)):
        return dict.fromkeys(names, 1e-6 * given)
    if unknown := [name for name in given or () if name not in ROUTERS]:
        hint = f"known are {', '.join(ROUTERS)}"
        raise InputError(f"there is no router '{unknown[0]}'", field="routing-time", hint=hint)
    known = [name for name in names if name in ROUTERS]  # a plan refuses the others
    measured = {name: measured_s(name, engines) for name in known} if engines > 1 else {}
    return measured | {name: 1e-6 * us for name, us in (given or {}).items()}
