"""Which engine simulates: the compiled one where Numba is installed, else the readable one, for the same outcome."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from lengthwise.policies import Policy
from lengthwise.simulator.engine import FleetEngines, ReadableGroup
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.traffic import Traffic
from lengthwise.version import install_line

NOT_ACCELERATED: Final = (
    "numba is not installed: simulating with the readable engine, which is some hundred times slower "
    f"({install_line('sim')})"
)


def engine_group(
    fleet: Fleet, policy: Policy, traffic: Traffic, *, decision_s: float = 0.0, accelerate: bool
) -> FleetEngines[Any]:
    """Return the engines of a fleet for one simulation, none of them started: compiled or readable ones.

    `joint` admission, on any of them, is that of readable engines.
    """
    if not accelerate or any(spec.admission == "joint" for spec in fleet.engines):
        return ReadableGroup(fleet, policy, traffic, decision_s=decision_s)
    from lengthwise.simulator.kernel.host import CompiledGroup  # loads Numba

    return CompiledGroup(fleet, policy, traffic, decision_s=decision_s)


@cache
def accelerated() -> bool:
    """Whether Numba is installed, so that simulations run on the compiled engine; logs a warning once if it is not."""
    if find_spec("numba") is None:
        logging.getLogger(__name__).warning(NOT_ACCELERATED)
        return False
    return True
