from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lengthwise
from lengthwise.routers.load_aware import LeastLoad


@pytest.mark.parametrize("name", lengthwise.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(lengthwise, name) is not None
    assert name in dir(lengthwise)


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        lengthwise.nope  # noqa: B018


def test_the_core_and_the_command_line_load_nothing_heavy() -> None:
    code = (
        "import sys, lengthwise.cli; "
        "print([m for m in ('torch', 'transformers', 'vllm', 'ray', 'matplotlib', 'aiohttp') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_no_public_class_name_is_defined_twice() -> None:
    root = Path(lengthwise.__file__).parent
    names = Counter(
        node.name
        for path in root.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


face: Any = lengthwise  # without its types


@pytest.mark.parametrize(
    "call",
    [
        lambda: face.LogT(mu="6", sigma=1.0, cap=10),
        lambda: face.LogT(mu=6.0, sigma=1.0, cap="10"),
        lambda: face.Point("3"),
        lambda: face.LogT(6.0, 1.0, 100).quantile("0.5"),
        lambda: face.LogT(6.0, 1.0, 100).remaining("5"),
        lambda: face.Fleet.parse(4),
        lambda: face.Fleet.parse("llama-3-8b@a100").limited_to(max_num_seqs="32"),
        lambda: face.load_trace(None),
        lambda: face.load_predictor(5),
        lambda: face.make_policy(5),
        lambda: face.make_router(5),
        lambda: face.simulate("azure_sample", "llama-3-8b@a100", "fcfs", router=4),
        lambda: face.simulate("azure_sample", "llama-3-8b@a100", "fcfs", router=LeastLoad),
        lambda: face.simulate("castillo", "llama-3-8b@a100", "fcfs", requests="20"),
        lambda: face.simulate("castillo", "llama-3-8b@a100", "fcfs", requests=20, seed="a"),
        lambda: face.simulate("castillo", "llama-3-8b@a100", "fcfs", requests=20, load="high"),
    ],
)
def test_a_value_of_a_wrong_type_is_an_input_error_of_one_line(call: Callable[[], object]) -> None:
    with pytest.raises(lengthwise.InputError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_a_notebook_shows_is_one_line() -> None:
    workload = lengthwise.load_trace("azure_sample")
    assert repr(workload) == "Workload('azure_sample', 2,000 requests)"
