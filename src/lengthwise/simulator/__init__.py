"""A cluster of engines in virtual time: what a policy would do to a workload, exactly and without a GPU.

No wall clock, no randomness of its own: the same inputs give the same outcome, bit for bit.
"""

from lengthwise.simulator.capacity import Capacity, measure_capacity
from lengthwise.simulator.cluster import RoundRobin, Router, simulate
from lengthwise.simulator.costs import CostModel, StepCost
from lengthwise.simulator.engine import Engine, Step
from lengthwise.simulator.fleet import ENGINES, EngineSpec, Fleet
from lengthwise.simulator.metrics import Spread, Summary, summarise
from lengthwise.simulator.oracles import PREDICTORS
from lengthwise.simulator.outcome import Outcome

__all__ = [
    "ENGINES",
    "PREDICTORS",
    "Capacity",
    "CostModel",
    "Engine",
    "EngineSpec",
    "Fleet",
    "Outcome",
    "RoundRobin",
    "Router",
    "Spread",
    "Step",
    "StepCost",
    "Summary",
    "measure_capacity",
    "simulate",
    "summarise",
]
