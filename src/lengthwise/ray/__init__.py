"""Lengthwise on a Ray cluster: the Ray Serve application, its request router, and simulations as remote tasks.

Ray is imported when `app` or `LengthwiseRequestRouter` is first used: commands import this package without it.
"""

from importlib import import_module
from typing import Any, Final

_MODULES: Final = {"app": "application", "LengthwiseRequestRouter": "request_router"}


def __getattr__(name: str) -> Any:  # an attribute of a module that is imported here
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
