"""Compiled files keep their own numbers of columns; they are to be the same everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lengthwise.routers.kernel import cost, ledger, prefixes
from lengthwise.routers.kernel.loads import Load

OTHER_NAMES = {"BEGINNINGS": "BEGUN"}
ELSEWHERE = {"BEGUN"}  # in the ledger's own columns of jobs


@pytest.mark.parametrize("module", [cost, ledger])
def test_columns_of_loads_have_the_numbers_they_have_elsewhere(module: object) -> None:
    names = {OTHER_NAMES.get(name, name): name for name in vars(module) if name not in ELSEWHERE}
    shared = [name for name in names if name in Load.__members__]
    assert len(shared) >= 16
    for name in shared:
        assert getattr(module, names[name]) == Load[name], name


def test_columns_of_the_index_have_the_numbers_they_have_elsewhere() -> None:
    for name in ("HELD", "LOST", "MISSED"):
        assert getattr(cost, name) == getattr(prefixes, name)


@pytest.mark.parametrize("module", [cost, ledger, prefixes])
def test_a_compiled_file_stands_for_itself(module: object) -> None:
    """What Numba keeps of it is taken to be good until this very file changes."""
    tree = ast.parse(Path(str(vars(module)["__file__"])).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {name for name in imported if name is not None and name.startswith("lengthwise")}
    assert own == {"lengthwise.routers.kernel.compiling"}
