"""The workloads that are compared on, drawn anew for each seed at one request per second."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lengthwise.workloads import Workload, castillo_workload, load_castillo, load_trace, redraw
from lengthwise.workloads.generators import DiscreteLengths, react_workload
from lengthwise.workloads.traces import find_trace

__all__ = ["CASES", "draw", "here", "named"]

CASES: Final = ("react", "mooncake", "azure", "castillo")
LLM: Final = "llama-3.1-8b"
LENGTHS: Final = DiscreteLengths((1, 300), (0.5, 0.5))
"""Of ReAct's answers: the variance-maximising ones of length-aware Preble."""
_TRACES: Final = {"mooncake": ("mooncake_conversation",), "azure": ("azure2023_conv", "azure_sample")}


def here() -> list[str]:
    """The cases whose data are at hand."""
    return [case for case in CASES if case not in _TRACES or _trace(case) is not None]


def named(case: str) -> str:
    """What a case is drawn from."""
    return _trace(case) or case


@lru_cache(maxsize=8)
def draw(case: str, requests: int, seed: int) -> Workload:
    """So many requests in random order with Poisson arrivals."""
    if case == "react":
        return react_workload(requests=requests, rate=1.0, lengths=LENGTHS, seed=seed)
    if case == "castillo":
        return castillo_workload(load_castillo(split="test"), LLM, requests=requests, rate=1.0, seed=seed)
    return redraw(_loaded(named(case)), requests=requests, rate=1.0, seed=seed)


@lru_cache(maxsize=2)
def _loaded(name: str) -> Workload:
    return load_trace(name)


def _trace(case: str) -> str | None:
    """The fullest trace for a case that is at hand."""
    return next((name for name in _TRACES.get(case, ()) if find_trace(name).path is not None), None)
