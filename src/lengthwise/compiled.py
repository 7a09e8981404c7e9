"""How compiled functions are compiled and where their machine code is cached.

Numba comes with an extra. Importing this module without it raises an InputError that names the extra. Machine code is
cached in LENGTHWISE_CACHE or the user's cache folder, so that a read-only or shared installation compiles once per user
and not at every start; NUMBA_CACHE_DIR, where set, takes precedence. Numba invalidates a cached function when the file
that defines it changes and checks no other file: a function that is cached and those it calls belong in one module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar, cast

from lengthwise.cache import cache_home
from lengthwise.errors import InputError

try:
    from numba import njit, types
    from numba.core import config
except ModuleNotFoundError as error:
    raise InputError(
        "compiled code needs Numba, which is not installed", hint="pip install 'lengthwise[sim]' or 'lengthwise[serve]'"
    ) from error

Function = TypeVar("Function", bound="Callable[..., object]")

_log = logging.getLogger(__name__)
_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy"}


def cache_folder() -> Path:
    """Return the folder of cached machine code."""
    return cache_home() / "compiled"


def compiled(function: Function) -> Function:
    """Compile a function that Python calls, and cache its machine code."""
    before = config.CACHE_DIR
    try:
        config.CACHE_DIR = before or str(cache_folder())
        return cast("Function", njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        _log.warning("no writable folder for compiled code: it is compiled at every start; set LENGTHWISE_CACHE")
        return cast("Function", njit(**_OPTIONS)(function))
    finally:
        config.CACHE_DIR = before


def inlined(function: Function) -> Function:
    """Compile a function that only compiled ones call: no entry point for Python, and one specialisation.

    Signed integer arguments are 64-bit, whatever callers pass. Callers pass 32-bit fields, 64-bit values and literals;
    a specialisation for each would double the compile time.
    """
    dispatcher: Any = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)
    resolve = dispatcher.get_call_template

    def get_call_template(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        return resolve(tuple(_widened(argument) for argument in arguments), keywords)

    dispatcher.get_call_template = get_call_template
    return cast("Function", dispatcher)


def inlined_copies(*functions: Callable[..., object]) -> list[Any]:
    """Compile copies of plain functions, as `inlined`; each may call those before it.

    So a rule exists once: Python runs it as it is, on objects, and compiled code runs it on records of the same fields.
    """
    known: dict[str, Any] = {}
    for function in functions:
        plain = cast("FunctionType", function)
        known[plain.__name__] = inlined(FunctionType(plain.__code__, {**plain.__globals__, **known}, plain.__name__))
    return list(known.values())


def _widened(argument: Any) -> Any:
    plain = types.unliteral(argument)
    return types.int64 if isinstance(plain, types.Integer) and plain.signed else plain
