"""A cluster of engines in virtual time: what a policy would do to a workload, exactly and without a GPU.

No wall clock, no randomness of its own: the same inputs give the same outcome, bit for bit.
"""

from lengthwise.simulator.beliefs import RequestBeliefs, believe
from lengthwise.simulator.capacity import Capacity, measure_capacity
from lengthwise.simulator.catalogue import ENGINES, find_engine
from lengthwise.simulator.cluster import BlindRouter, RoundRobin, Router, simulate
from lengthwise.simulator.costs import CostModel, Line, Piecewise, Roofline, StepCost
from lengthwise.simulator.disaggregated import simulate_disaggregated
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.metrics import Spread, Summary, summarise
from lengthwise.simulator.outcome import EngineOutcome, Handover, Outcome, Timeline
from lengthwise.simulator.pools import KvLink, Pools
from lengthwise.simulator.spec import EngineSpec

__all__ = [
    "ENGINES",
    "BlindRouter",
    "Capacity",
    "CostModel",
    "EngineOutcome",
    "EngineSpec",
    "Fleet",
    "Handover",
    "KvLink",
    "Line",
    "Outcome",
    "Piecewise",
    "Pools",
    "RequestBeliefs",
    "Roofline",
    "RoundRobin",
    "Router",
    "Spread",
    "StepCost",
    "Summary",
    "Timeline",
    "believe",
    "find_engine",
    "measure_capacity",
    "simulate",
    "simulate_disaggregated",
    "summarise",
]
