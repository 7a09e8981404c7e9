"""Compiled modules repeat column numbers: the cache notices changes of the files of functions, not of constants."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from numba.core.dispatcher import Dispatcher

from lengthwise.routers import ledger, lengthwise, load_aware, prefix_index

MODULES = [lengthwise, load_aware, ledger, prefix_index]


@pytest.mark.parametrize("router", [lengthwise, load_aware])
@pytest.mark.parametrize(("repeated", "module"), [("LIVE", ledger), ("HELD", prefix_index)])
def test_repeated_columns_have_the_same_numbers(router: ModuleType, repeated: str, module: ModuleType) -> None:
    shared = [name for name in vars(router) if name.isupper() and name[0] != "_" and name in vars(module)]
    assert repeated in shared
    for name in shared:
        assert getattr(router, name) == getattr(module, name), name


@pytest.mark.parametrize("module", MODULES)
def test_compiled_functions_call_compiled_functions_only(module: ModuleType) -> None:
    found = [function for _, function in inspect.getmembers(module) if isinstance(function, Dispatcher)]
    assert found
    for function in found:
        used = [vars(module)[name] for name in function.py_func.__code__.co_names if name in vars(module)]
        assert not any(inspect.isfunction(each) for each in used)
