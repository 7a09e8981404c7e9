"""Compiled modules repeat column numbers, because Numba's cache notices changes of the defining file only."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
from numba.core.dispatcher import Dispatcher

from lengthwise.routers import ledger_kernel, lengthwise, prefix_kernel
from lengthwise.routers.ledger import Load

MODULES = [lengthwise, ledger_kernel, prefix_kernel]


@pytest.mark.parametrize("module", [lengthwise, ledger_kernel])
def test_columns_of_loads_have_the_same_numbers_everywhere(module: ModuleType) -> None:
    shared = [name for name in vars(module) if name in Load.__members__]
    assert len(shared) >= 16
    for name in shared:
        assert getattr(module, name) == Load[name], name


def test_columns_of_the_index_have_the_same_numbers_everywhere() -> None:
    for name in ("HELD", "LOST", "MISSED"):
        assert getattr(lengthwise, name) == getattr(prefix_kernel, name)


@pytest.mark.parametrize("module", MODULES)
def test_compiled_functions_use_nothing_of_another_module(module: ModuleType) -> None:
    found = [function for _, function in inspect.getmembers(module) if isinstance(function, Dispatcher)]
    assert found
    for function in found:
        used = [vars(module)[name] for name in function.py_func.__code__.co_names if name in vars(module)]
        for each in used:
            if isinstance(each, Dispatcher):
                assert each.py_func.__module__ == module.__name__
            assert not inspect.isfunction(each)
