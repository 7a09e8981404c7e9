"""Which engine simulates: the compiled one where Numba is installed, else the readable one, for the same outcome."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from lengthwise.cache import compilation_marker
from lengthwise.policies import Policy
from lengthwise.routers.compilation import compiled_router, router_marker
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
"""Answer tokens that the readable engine simulates in about half the CPU time that compiling the kernel takes."""
_RENTED_TOKENS: Final = 5_000_000
"""Those that it has simulated when compiling would have cost no more."""
_ROUTER_SHARE: Final = 0.4
"""CPU time of compiling a router, over that of the kernel."""
_TOKENS_OF_A_BLOCK: Final = 25
"""Answer tokens that it simulates while a router in Python looks up a block of a prompt and enters it."""


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


def worth_compiling(tokens: int, routers: Iterable[str] = (), blocks: int = 0) -> bool:
    """Whether simulations of this many answer tokens and prompt blocks, all together, should be compiled.

    Not where the kernel or a router is not compiled yet and they are few: then the readable engine and the interpreted
    router are sooner ready, with the same outcome. What they have simulated is counted in the folder of compiled code,
    so that it is compiled before small simulations have cost more than that.
    """
    if not accelerated():
        return False
    names = [name for name in map(compiled_router, routers) if name is not None]
    tokens += _TOKENS_OF_A_BLOCK * blocks if names else 0
    shares = {router_marker(name): _ROUTER_SHARE for name in names}
    shares[compilation_marker(f"kernel-{kernel_fingerprint():x}")] = 1.0
    missing = {marker: share for marker, share in shares.items() if not marker.exists()}
    cost = sum(missing.values())
    if not missing or tokens > _RUN_TOKENS * cost:
        return True
    marker = next(iter(missing))
    counted = marker.with_suffix(f"{marker.suffix}.readable")
    rented = tokens
    with suppress(OSError, ValueError):
        rented += int(counted.read_text(encoding="utf-8"))
    if rented > _RENTED_TOKENS * cost:
        return True
    with suppress(OSError):
        counted.parent.mkdir(parents=True, exist_ok=True)
        counted.write_text(str(rented), encoding="utf-8")
    return False
