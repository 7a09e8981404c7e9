"""When the compiled engine is worth compiling."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lengthwise import compiled
from lengthwise.routers.compilation import announce_router
from lengthwise.simulator import acceleration
from lengthwise.simulator.acceleration import worth_compiling
from lengthwise.simulator.kernel.sources import kernel_fingerprint


@pytest.fixture(autouse=True)
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


@pytest.mark.parametrize(
    ("tokens", "compiles"),
    [
        ([400_000] * 3, [False] * 3),
        ([3_000_000], [True]),
        ([1_900_000] * 3, [False, False, True]),  # as many more would have cost what compiling costs
    ],
)
def test_few_tokens_are_simulated_without_the_compiler_until_they_are_many_together(
    tokens: Sequence[int], compiles: Sequence[bool]
) -> None:
    assert [worth_compiling(each) for each in tokens] == list(compiles)


def test_what_is_compiled_is_used_for_the_smallest_simulation() -> None:
    assert not worth_compiling(1)
    compiled.announce.cache_clear()
    compiled.announce("the simulator kernel", f"kernel-{kernel_fingerprint():x}")
    assert worth_compiling(1)


def test_a_small_simulation_behind_a_router_is_compiled_only_once_both_are() -> None:
    compiled.announce.cache_clear()
    assert not worth_compiling(1, ["lengthwise"])
    compiled.announce("the simulator kernel", f"kernel-{kernel_fingerprint():x}")
    assert worth_compiling(1, ["round_robin"])  # it has nothing to compile
    assert not worth_compiling(1, ["round_robin", "lengthwise:urgency=2"])
    announce_router("lengthwise")
    assert worth_compiling(1, ["round_robin", "lengthwise:urgency=2"])
    assert not worth_compiling(1, ["lengthwise", "dynamo"])


def test_a_router_that_is_compiled_too_raises_the_limit_and_one_that_is_left_to_compile_has_its_own() -> None:
    assert not worth_compiling(2_700_000, ["lengthwise"])
    assert worth_compiling(2_700_000)
    compiled.announce.cache_clear()
    compiled.announce("the simulator kernel", f"kernel-{kernel_fingerprint():x}")
    assert worth_compiling(900_000, ["dynamo"])


def test_blocks_of_prompts_count_behind_a_router_that_is_compiled() -> None:
    assert not worth_compiling(1000, ["round_robin"], blocks=1_000_000)
    assert worth_compiling(1000, ["lengthwise"], blocks=1_000_000)
    assert not worth_compiling(1000, ["lengthwise"], blocks=10_000)


def test_without_numba_nothing_is_worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceleration, "accelerated", lambda: False)
    assert not worth_compiling(3_000_000)


@pytest.mark.parametrize("fleet", ["llama-3-8b@a100", "3*llama-3-8b@a100"])
def test_the_first_small_simulate_compiles_nothing(tmp_path: Path, fleet: str) -> None:
    command = ["simulate", "castillo", "--requests", "60", "--rate", "8", "--policy", "fcfs,sjf,lengthwise"]
    command += ["--fleet", fleet]
    environment = {**os.environ, "LENGTHWISE_DATA": ""}
    done = subprocess.run(
        [sys.executable, "-m", "lengthwise", *command], env=environment, capture_output=True, text=True, check=True
    )
    assert "compiling" not in done.stderr
    assert not list(tmp_path.rglob("*.nbi"))
