"""LLM serving that knows how long an answer will be.

The names below are the public face; everything else may move. They are loaded when first used, so that
`import lengthwise` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from lengthwise.errors import InputError

if TYPE_CHECKING:
    from lengthwise.lengths import Histogram, LengthDistribution, LogT, LogTColumns, Point
    from lengthwise.policies import make_policy
    from lengthwise.predictors import load_predictor, predict_response_length
    from lengthwise.simulator import Fleet, simulate
    from lengthwise.workloads import LengthSamples, Workload, load_castillo, load_workload

__version__ = version("lengthwise")
__all__ = [
    "Fleet",
    "Histogram",
    "InputError",
    "LengthDistribution",
    "LengthSamples",
    "LogT",
    "LogTColumns",
    "Point",
    "Workload",
    "__version__",
    "load_castillo",
    "load_predictor",
    "load_workload",
    "make_policy",
    "predict_response_length",
    "simulate",
]

_ROOMS = {
    "errors": ("InputError",),
    "lengths": ("Histogram", "LengthDistribution", "LogT", "LogTColumns", "Point"),
    "policies": ("make_policy",),
    "predictors": ("load_predictor", "predict_response_length"),
    "simulator": ("Fleet", "simulate"),
    "workloads": ("LengthSamples", "Workload", "load_castillo", "load_workload"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'lengthwise' has no attribute '{name}'")
    return getattr(import_module(f"lengthwise.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
