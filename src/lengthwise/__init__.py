"""LLM serving that predicts answer lengths and schedules by them.

The names in `__all__` are the public interface; everything else may change. A name is imported when it is first
used, so `import lengthwise` is fast and needs no optional package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lengthwise.errors import InputError, missing_extra
from lengthwise.version import package_version

if TYPE_CHECKING:
    from lengthwise.client.rollouts import rollouts
    from lengthwise.gateway import create_app
    from lengthwise.lengths import Histogram, LengthDistribution, LogT, Point
    from lengthwise.policies import Job, Policy, make_policy
    from lengthwise.predictors import Prediction, PredictionInput, load_predictor, predict
    from lengthwise.predictors.castillo_api import predict_response_length
    from lengthwise.reports.compare import compare
    from lengthwise.routers import Router, make_router
    from lengthwise.simulator import Fleet, simulate
    from lengthwise.workloads import load_trace

    __version__: str

__all__ = [
    "Fleet",
    "Histogram",
    "InputError",
    "Job",
    "LengthDistribution",
    "LogT",
    "Point",
    "Policy",
    "Prediction",
    "PredictionInput",
    "Router",
    "__version__",
    "compare",
    "create_app",
    "load_predictor",
    "load_trace",
    "make_policy",
    "make_router",
    "predict",
    "predict_response_length",
    "rollouts",
    "simulate",
]

_EXPORTS = {
    "client.rollouts": ("rollouts",),
    "gateway": ("create_app",),
    "lengths": ("Histogram", "LengthDistribution", "LogT", "Point"),
    "policies": ("Job", "Policy", "make_policy"),
    "predictors": ("Prediction", "PredictionInput", "load_predictor", "predict"),
    "predictors.castillo_api": ("predict_response_length",),
    "reports.compare": ("compare",),
    "routers": ("Router", "make_router"),
    "simulator": ("Fleet", "simulate"),
    "workloads": ("load_trace",),
}
_PACKAGE_OF = {name: package for package, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return package_version()
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module 'lengthwise' has no attribute '{name}'")
    try:
        return getattr(import_module(f"lengthwise.{_PACKAGE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error


def __dir__() -> list[str]:
    return sorted(__all__)
