"""A cluster of engines in virtual time: what a policy would do to a workload, exactly and without a GPU.

No wall clock, no randomness of its own: the same inputs give the same outcome, bit for bit.
"""

from lengthwise.simulator.capacity import Capacity, measure_capacity
from lengthwise.simulator.catalogue import ENGINES, find_engine
from lengthwise.simulator.cluster import RoundRobin, Router, StaticRouter, simulate
from lengthwise.simulator.costs import CostModel, Line, Piecewise, Roofline, StepCost
from lengthwise.simulator.disaggregated import simulate_disaggregated
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.metrics import Spread, Summary, summarise
from lengthwise.simulator.outcome import EngineOutcome, Handover, Outcome, Timeline
from lengthwise.simulator.pools import KvLink, Pools
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.simulator.spec import EngineSpec

__all__ = [
    "ENGINES",
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
    "RequestPredictions",
    "Roofline",
    "RoundRobin",
    "Router",
    "Spread",
    "StaticRouter",
    "StepCost",
    "Summary",
    "Timeline",
    "find_engine",
    "measure_capacity",
    "predict_workload",
    "simulate",
    "simulate_disaggregated",
    "summarise",
]
