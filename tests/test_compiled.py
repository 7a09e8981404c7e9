"""Compiled copies of plain functions, and when cached machine code is used again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lengthwise.compiled import announce, compiled, inlined, inlined_copies, interpreted
from lengthwise.prefixes import splitmix64

_mix = inlined(splitmix64)


@compiled
def mixed(number: np.uint64) -> np.uint64:
    return np.uint64(_mix(number))


def test_a_compiled_rule_is_the_plain_one() -> None:
    numbers = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    assert [int(mixed(number)) for number in numbers] == splitmix64(numbers).tolist()


def read(table: float) -> float:
    return table


def twice(table: float) -> float:
    return 2.0 * read(table)


@inlined
def _read_other(table: float) -> float:
    return table + 1.0


(_twice_other,) = inlined_copies(twice, read=_read_other)


@compiled
def twice_other(table: float) -> float:
    return float(_twice_other(table))


def test_a_copy_may_call_another_function_in_place_of_the_plain_one() -> None:
    assert twice(3.0) == 6.0
    assert twice_other(3.0) == 8.0


@inlined
def _half_asinh(t: float) -> float:
    return float(np.arcsinh(t) * 0.5)


@compiled
def squash(t: float, over: float) -> float:
    return _half_asinh(t) / over


def test_an_interpreted_function_has_every_bit_of_the_compiled_one() -> None:
    in_python = interpreted(squash)
    for t in np.random.default_rng(0).normal(0.0, 9.0, 500).tolist():
        assert in_python(t, 3.0) == squash(t, 3.0)
    assert in_python(np.float64(1.0), np.float64(0.0)) == squash(1.0, 0.0) == np.inf
    assert interpreted(mixed)(np.uint64(2**63)) == mixed(np.uint64(2**63))
    assert interpreted(squash) is in_python


@compiled
def root(number: float) -> float:
    return float(np.cbrt(number))


def test_a_function_of_numpy_that_may_differ_in_its_last_bit_is_not_interpreted() -> None:
    with pytest.raises(AttributeError, match="cbrt"):
        interpreted(root)(8.0)


@pytest.mark.parametrize("changed", ["rule.py", "unrelated.py"])
def test_a_change_of_a_file_that_a_function_calls_compiles_it_again(tmp_path: Path, changed: str) -> None:
    (tmp_path / "rule.py").write_text("def rule(x):\n    return 2.0 * x\n")
    (tmp_path / "unrelated.py").write_text("def rule(x):\n    return 2.0 * x\n")
    (tmp_path / "host.py").write_text(
        "from lengthwise.compiled import compiled, inlined\nfrom rule import rule\n\n_rule = inlined(rule)\n\n"
        "@compiled\ndef host(x):\n    return _rule(x)\n"
    )
    program = "import host; print(host.host(3.0), sum(host.host.stats.cache_hits.values()))"

    def run() -> list[str]:
        command = [sys.executable, "-B", "-c", program]
        environment = {"PYTHONPATH": f"{Path('src').resolve()}:{tmp_path}", "LENGTHWISE_CACHE": str(tmp_path / "cache")}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()

    assert run() == ["6.0", "0"]
    (tmp_path / changed).write_text("def rule(x):\n    return 5.0 * x\n")
    assert run() == (["15.0", "0"] if changed == "rule.py" else ["6.0", "1"])


def test_what_is_compiled_is_announced_once_and_again_for_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    source = tmp_path / "source.py"
    for text, lines in (("a = 1", 1), ("a = 1", 1), ("a = 2", 2)):
        source.write_text(text)
        announce.cache_clear()  # as another process
        announce("a router", "router-x", (source,))
        assert [each.message for each in caplog.records] == ["compiling a router (once, 10 to 30 seconds)"] * lines
