"""Which engine simulates: the compiled one where Numba is installed, else the readable one, for the same outcome."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lengthwise.cache import cache_home
from lengthwise.policies import Policy
from lengthwise.simulator.engine import FleetEngines, ReadableGroup
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.kernel.sources import kernel_fingerprint
from lengthwise.simulator.traffic import Traffic
from lengthwise.version import install_line

NOT_ACCELERATED: Final = (
    "numba is not installed: simulating with the readable engine, which is some hundred times slower "
    f"({install_line('sim')})"
)


_RUN_TOKENS: Final = 2_000_000
"""Answer tokens that the readable engine simulates in less than half the CPU time that compiling takes."""
_RENTED_TOKENS: Final = 5_000_000
"""Those that it has simulated when compiling would have cost no more."""


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


def worth_compiling(tokens: int) -> bool:
    """Whether simulations of this many answer tokens, all together, should run on the compiled engine.

    Not where its kernel is not compiled yet and they are few: then the readable engine is sooner ready, with the same
    outcome. What it has simulated is counted in the folder of compiled code, so that it is compiled before small
    simulations have cost more than that.
    """
    if not accelerated():
        return False
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_home() / "compiled")
    marker = folder / f"kernel-{kernel_fingerprint():x}-{version('numba')}"  # of `compiled.announce`
    if marker.exists() or tokens > _RUN_TOKENS:
        return True
    counted = marker.with_suffix(f"{marker.suffix}.readable")
    rented = tokens
    with suppress(OSError, ValueError):
        rented += int(counted.read_text(encoding="utf-8"))
    if rented > _RENTED_TOKENS:
        return True
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        counted.write_text(str(rented), encoding="utf-8")
    return False
