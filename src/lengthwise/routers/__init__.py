"""The choice among engines: which engine serves a request. Order inside an engine is `lengthwise.policies`.

Routers are pure: time and events are arguments, and no router knows a clock, a socket or a simulator.
"""

from lengthwise.routers.base import (
    ROUTERS,
    Admitted,
    BaseRouter,
    Costs,
    Decision,
    EngineId,
    EngineInfo,
    Event,
    ExplainingRouter,
    Finished,
    NoEngineError,
    Router,
    Scraped,
    Speed,
    make_router,
)

__all__ = [
    "ROUTERS",
    "Admitted",
    "BaseRouter",
    "Costs",
    "Decision",
    "EngineId",
    "EngineInfo",
    "Event",
    "ExplainingRouter",
    "Finished",
    "NoEngineError",
    "Router",
    "Scraped",
    "Speed",
    "make_router",
]
