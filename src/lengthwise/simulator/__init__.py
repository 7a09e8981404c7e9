"""A cluster of engines in virtual time: what a policy would do to a workload, exactly and without a GPU.

No wall clock, no randomness of its own: the same inputs give the same outcome, bit for bit.
"""

from lengthwise.simulator.cluster import Capacity, measure_capacity, simulate
from lengthwise.simulator.costs import CostModel, CostSegment, Piecewise, Roofline, StepCost
from lengthwise.simulator.disaggregated import KvLink, Pools
from lengthwise.simulator.fleet import ENGINES, EngineSpec, Fleet, find_engine
from lengthwise.simulator.metrics import Spread, Summary, summarise
from lengthwise.simulator.outcome import EngineOutcome, Handover, Outcome, Timeline
from lengthwise.simulator.predictions import RequestPredictions, default_predictor, predict_workload

__all__ = [
    "ENGINES",
    "Capacity",
    "CostModel",
    "CostSegment",
    "EngineOutcome",
    "EngineSpec",
    "Fleet",
    "Handover",
    "KvLink",
    "Outcome",
    "Piecewise",
    "Pools",
    "RequestPredictions",
    "Roofline",
    "Spread",
    "StepCost",
    "Summary",
    "Timeline",
    "default_predictor",
    "find_engine",
    "measure_capacity",
    "predict_workload",
    "simulate",
    "summarise",
]
