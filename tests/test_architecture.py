"""The structure of the package: no circle of imports, and a picture in the docs that shows the imports there are."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    found = {}
    for path in (SOURCE / "lengthwise").rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a file names in an import, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in known or node.module in known:
                    yield submodule if submodule in known else node.module


def file_imports() -> Graph:
    known = modules()
    # The face of the package names what it exports; nothing inside imports it.
    return {name: set(imported(path, known)) - {name} for name, path in known.items() if name != "lengthwise"}


def package_of(module: str) -> str:
    """Return the package below `lengthwise`, or `root` for a file beside the packages."""
    first = module.split(".")[1]
    return first if (SOURCE / "lengthwise" / first).is_dir() else "root"


def package_imports() -> Graph:
    graph: Graph = {}
    for module, others in file_imports().items():
        if module == "lengthwise.__main__" or package_of(module) == "engines":  # old paths, for one release
            continue
        below = {package_of(other) for other in others if other != "lengthwise"} - {package_of(module)}
        graph.setdefault(package_of(module), set()).update(below)
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    open_ = [start]
    while open_:
        new = graph.get(open_.pop(), set()) - found
        found |= new
        open_ += new
    return found


def direct_arrows(graph: Graph) -> set[tuple[str, str]]:
    """Return the imports that no longer path implies."""
    return {
        (package, below)
        for package, others in graph.items()
        for below in others
        if not any(below in reachable(graph, between) for between in others - {below})
    }


def drawn_arrows() -> set[tuple[str, str]]:
    text = (ROOT / "docs" / "reference" / "architecture.md").read_text(encoding="utf-8")
    picture = re.search(r"```mermaid\n(.*?)```", text, re.DOTALL)
    assert picture is not None, "docs/reference/architecture.md has no picture"
    arrows = set()
    for line in picture[1].splitlines():
        if "-->" in line:
            left, right = (re.findall(r"\w+", re.sub(r"\[.*?\]", "", side)) for side in line.split("-->"))
            arrows |= {(package, below) for package in left for below in right}
    return arrows


def contract_layers() -> list[set[str]]:
    """Return the layers of the import contract, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    return [
        {package_of(name.strip()) for name in layer.split(":") if name.strip().startswith("lengthwise.")}
        for layer in contract["layers"]
    ]


def test_no_files_of_the_package_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(file_imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_nothing_in_the_package_imports_its_face() -> None:
    known = modules()
    inside = {name for name, path in known.items() if "lengthwise" in set(imported(path, known))} - {"lengthwise"}
    assert not inside


def test_the_picture_of_the_packages_shows_the_imports_there_are() -> None:
    assert drawn_arrows() == direct_arrows(package_imports())


def test_the_arrows_of_the_picture_point_down_in_the_import_contract() -> None:
    height = {package: -number for number, layer in enumerate(contract_layers()) for package in layer}
    for package, below in drawn_arrows():
        assert height[package] >= height[below], f"{package} --> {below}"


def test_every_package_is_in_the_import_contract() -> None:
    folders = {path.parent.name for path in (SOURCE / "lengthwise").glob("*/__init__.py")}
    assert folders <= set().union(*contract_layers())
