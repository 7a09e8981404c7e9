"""The check of a release's sources against the contract: on sources made up here, and on those of the tested releases.

The latter are fetched beside the project (`make upstream`) and never committed; those that are absent are skipped.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lengthwise.vllm import contract
from lengthwise.vllm.contract import CONTRACT, TESTED_RELEASES, Feature, Name, is_tested, problems

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "lengthwise"
BASE = """
class Base(ABC):
    @abstractmethod
    def told(self, request, more=None): ...
    def __init__(self):
        self.kept: list[int] = []
"""
SOURCE = """
from vllm.v1.base import Base
class Scheduler(Base):
    limit: int = 3
    def _free(self, request: Request, *, now: float, later: bool = False):
        self.blocks, self.tokens = 1, 2
        self.running.pop()
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "base.py").write_text(BASE)
    (tmp_path / "v1" / "scheduler.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "parameters", "text", "problem"),
    [
        ("Scheduler.limit", None, "", None),
        ("Scheduler.kept", None, "", None),
        ("Scheduler.tokens", None, "", None),
        ("Scheduler.told", ("request",), "", None),
        ("Scheduler._free", ("request", "now"), "self.running.pop()", None),
        ("Scheduler._free", ("request", "now", "later?", "never?"), "", None),
        ("Scheduler.nothing | Scheduler.limit", None, "", None),
        ("Scheduler.nothing", None, "", "no Scheduler.nothing (vllm/v1/scheduler.py)"),
        ("nothing | Other.limit", None, "", "no nothing or Other.limit (vllm/v1/scheduler.py)"),
        ("Scheduler._free", ("request",), "", "Scheduler._free needs now (vllm/v1/scheduler.py)"),
        ("Scheduler._free", ("request", "now", "x"), "", "Scheduler._free takes no x (vllm/v1/scheduler.py)"),
        ("Scheduler.limit", (), "", "Scheduler.limit is no function (vllm/v1/scheduler.py)"),
        ("Scheduler._free", None, "popleft", "Scheduler._free does not state `popleft` (vllm/v1/scheduler.py)"),
    ],
)
def test_a_name_is_found_in_a_class_its_bases_and_what_its_methods_set(
    sources: Path, names: str, parameters: tuple[str, ...] | None, text: str, problem: str | None
) -> None:
    assert contract._problem(sources, Name(Feature.ORDER, "v1/scheduler", names, parameters, text)) == problem


def test_sources_without_any_name_lack_every_feature(tmp_path: Path) -> None:
    assert set(problems(tmp_path)) == set(Feature)


@pytest.mark.parametrize(
    ("version", "tested"),
    [("0.30.0", True), ("0.33.4", True), ("0.33.0rc1", True), ("0.34.0", False), ("0.3", False), ("1.30.0", False)],
)
def test_a_version_belongs_to_a_tested_release_by_its_first_two_numbers(version: str, tested: bool) -> None:
    assert is_tested(version) is tested


def unpacked(release: str) -> Path | None:
    return next(iter(sorted((ROOT / ".upstream").glob(f"vllm-{release}.*/vllm"))), None)


@pytest.mark.parametrize("release", TESTED_RELEASES)
def test_the_sources_of_every_tested_release_fulfil_the_contract(release: str) -> None:
    root = unpacked(release)
    if root is None:
        pytest.skip(f"the sources of vLLM {release} are not here: run `make upstream`")
    assert problems(root) == {}


@pytest.mark.parametrize("name", CONTRACT, ids=lambda name: f"{name.feature}-{name.names}")
def test_every_name_of_the_contract_would_be_missed(name: Name) -> None:
    root = next((found for each in reversed(TESTED_RELEASES) if (found := unpacked(each)) is not None), None)
    if root is None:
        pytest.skip("no sources of vLLM are here: run `make upstream`")
    other = Name(name.feature, name.file, name.names.split(" | ")[0] + "_of_another_release")
    assert contract._problem(root, other) is not None


def test_only_the_adapter_and_the_worker_import_vllm() -> None:
    importing = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typing_only = {
            id(node)
            for guard in ast.walk(tree)
            if isinstance(guard, ast.If) and ast.unparse(guard.test) == "TYPE_CHECKING"
            for node in ast.walk(guard)
        }
        for node in ast.walk(tree):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if id(node) not in typing_only and any(module.split(".")[0] == "vllm" for module in modules):
                importing.add(path.relative_to(PACKAGE).as_posix())
    assert importing == {"vllm/adapter.py", "vllm/worker.py"}
