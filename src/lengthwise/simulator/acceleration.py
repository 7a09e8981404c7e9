"""Which engine simulates: the compiled one where Numba is installed, else the readable one, for the same outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Final

from lengthwise.policies import Policy
from lengthwise.simulator.engine import Engine, SimulatedEngine
from lengthwise.simulator.fleet import EngineSpec
from lengthwise.simulator.traffic import Traffic

NOT_ACCELERATED: Final = (
    "numba is not installed: simulating with the readable engine, which is some hundred times slower "
    "(pip install 'lengthwise[sim]')"
)


MakeEngine = Callable[[EngineSpec], SimulatedEngine]


def engine_factory(policy: Policy, traffic: Traffic, *, decision_s: float = 0.0, accelerate: bool) -> MakeEngine:
    """Return a function that makes empty engines for one simulation, compiled or readable.

    Engines with `joint` admission are readable ones.
    """

    def readable(spec: EngineSpec) -> SimulatedEngine:
        return Engine(spec, policy, traffic, decision_s=decision_s)

    if not accelerate:
        return readable
    from lengthwise.simulator.kernel.host import CompiledEngine, PolicyKeys  # loads Numba

    keys = PolicyKeys(policy, traffic.jobs)

    def compiled(spec: EngineSpec) -> SimulatedEngine:
        if spec.admission == "joint":
            return readable(spec)
        return CompiledEngine(spec, keys, traffic, decision_s=decision_s)

    return compiled


@cache
def accelerated() -> bool:
    """Whether Numba is installed, so that simulations run on the compiled engine; logs a warning once if it is not."""
    if find_spec("numba") is None:
        logging.getLogger(__name__).warning(NOT_ACCELERATED)
        return False
    return True
