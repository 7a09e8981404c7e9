from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import lengthwise


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
