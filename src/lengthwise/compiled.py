"""How compiled functions are compiled and where their machine code is cached.

Numba comes with an extra. Importing this module without it raises an InputError that names the extra. Machine code is
cached in LENGTHWISE_CACHE or the user's cache folder, so that a read-only or shared installation compiles once per user
and not at every start; NUMBA_CACHE_DIR, where set, takes precedence. Numba invalidates a cached function when the file
that defines it changes and checks no other file: the files of compiled functions that it calls are part of the path of
the cache. A constant of another module is not: it belongs beside the functions that use it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, Final, Protocol, TypeVar, cast

import numpy as np

from lengthwise.cache import compilation_marker, compiled_folder, digest
from lengthwise.errors import InputError
from lengthwise.version import install_line

try:
    from numba import njit, types
    from numba.core import config
    from numba.extending import is_jitted
except ModuleNotFoundError as error:
    raise InputError("compiled code needs Numba, which is not installed", hint=f"run: {install_line('sim')}") from error

Function = TypeVar("Function", bound="Callable[..., object]")

_log = logging.getLogger(__name__)
_OPTIONS: Final[dict[str, Any]] = {"error_model": "numpy"}


@cache
def announce(what: str, version: str, files: tuple[Path, ...] = ()) -> None:
    """Log that something is about to be compiled, unless a process has compiled this version of it before.

    `files`: the sources that the machine code depends on, beside `version`.
    """
    marker = compilation_marker(version, files)
    if not marker.exists():
        _log.warning("compiling %s (once, 10 to 30 seconds)", what)
        with suppress(OSError):
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()


def compiled(function: Function) -> Function:
    """Compile a function that Python calls, and cache its machine code."""
    before = config.CACHE_DIR
    try:
        config.CACHE_DIR = str(Path(before or compiled_folder(), digest(_files_called(cast("FunctionType", function)))))
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


def inlined_copies(*functions: Callable[..., object], **replaced: Callable[..., object]) -> list[Any]:
    """Compile copies of plain functions, as `inlined`; each may call those before it.

    So a rule exists once: Python runs it as it is, on objects, and compiled code runs it on records of the same fields.
    `replaced` names functions that the copies call in place of the plain ones: how compiled code reads a table.
    """
    known: dict[str, Any] = dict(replaced)
    for function in functions:
        plain = cast("FunctionType", function)
        known[plain.__name__] = inlined(FunctionType(plain.__code__, {**plain.__globals__, **known}, plain.__name__))
    return [known[function.__name__] for function in functions]


def compiled_copy(function: Function, *called: Callable[..., object]) -> Function:
    """Compile a copy of a plain function that Python calls, with copies of the plain functions that it calls."""
    known = dict(zip((each.__name__ for each in called), inlined_copies(*called), strict=True))
    plain = cast("FunctionType", function)
    return cast("Function", compiled(FunctionType(plain.__code__, {**plain.__globals__, **known}, plain.__name__)))


class Form(Protocol):
    """What a compiled function is run as: `as_compiled`, or `interpreted`."""

    def __call__(self, function: Function, /) -> Function:
        """Return the function in this form."""


def as_compiled(function: Function) -> Function:
    """Return the compiled function itself."""
    return function


def interpreted(function: Function) -> Function:
    """Return what a compiled function computes, to the last bit, in Python: much slower, and nothing is compiled.

    The functions that it calls are in Python too. The functions of NumPy that it calls on numbers are those of the C
    library, as in compiled code: NumPy's own may differ in the last bit.
    """
    return cast("Function", _interpreted(function))


@cache
def _interpreted(function: Any) -> Callable[..., Any]:
    plain = _in_python(function.py_func)

    def run(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return plain(*arguments)

    return run


def _in_python(function: FunctionType) -> FunctionType:
    known = dict(function.__globals__)
    for name in function.__code__.co_names:
        value: Any = known.get(name)
        if is_jitted(value):
            known[name] = _in_python(value.py_func)
        elif value is np:
            known[name] = _NUMPY_OF_NUMBERS
    return FunctionType(function.__code__, known, function.__name__, function.__defaults__)


_NUMPY_OF_NUMBERS: Final = SimpleNamespace(
    int64=np.int64, uint64=np.uint64, minimum=min, maximum=max, arcsinh=math.asinh
)
"""What interpreted functions call of NumPy; another function is an AttributeError, for a test to find."""


def _files_called(function: FunctionType) -> list[Path]:
    """Return the files of the compiled functions that a function may call, directly or not, except its own file."""
    files: set[str] = set()
    seen: set[int] = set()
    pending = [function]
    while pending:
        known = pending.pop().__globals__
        if id(known) not in seen:
            seen.add(id(known))
            called = [value.py_func for value in known.values() if is_jitted(value)]
            files.update(each.__code__.co_filename for each in called)
            pending += called
    return sorted(map(Path, files - {function.__code__.co_filename}))


def _widened(argument: Any) -> Any:
    plain = types.unliteral(argument)
    return types.int64 if isinstance(plain, types.Integer) and plain.signed else plain
