"""How routers' inner loops are compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound="Callable[..., object]")


def compiled(function: Function) -> Function:
    """Compile a function that Python calls, and keep the code beside its module."""
    try:
        return cast("Function", njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # neither beside the module nor in the user's folders can anything be written
        logging.getLogger(__name__).warning("nowhere to keep compiled code: it is compiled at every start")
        return cast("Function", njit(error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """Compile a function that only compiled ones of its own module call."""
    return cast("Function", njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))
