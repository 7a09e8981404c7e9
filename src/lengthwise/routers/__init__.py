"""The choice among engines: where a request runs.

Routers are pure: time and events come in as arguments, and they know no clock, socket or simulator.
"""

from lengthwise.routers.contract import (
    Admitted,
    Costs,
    Decision,
    EngineId,
    EngineInfo,
    Event,
    Evicted,
    Finished,
    NoEngineError,
    Progress,
    Router,
    Scraped,
    Speed,
)
from lengthwise.routers.registry import ROUTERS, make_router

__all__ = [
    "ROUTERS",
    "Admitted",
    "Costs",
    "Decision",
    "EngineId",
    "EngineInfo",
    "Event",
    "Evicted",
    "Finished",
    "NoEngineError",
    "Progress",
    "Router",
    "Scraped",
    "Speed",
    "make_router",
]
