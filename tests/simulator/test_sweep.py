"""A sweep computes only tasks that are not in the cache, with the same result on any kind of worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lengthwise.errors import InputError
from lengthwise.ray.sweep import on_ray
from lengthwise.simulator import tasks
from lengthwise.simulator.sweep import SweepConfig, read_sweep, run_sweep
from lengthwise.simulator.tasks import (
    ResultCache,
    Task,
    in_processes,
    run_task,
)
from tests.gateway.engine import free_port


@pytest.fixture(autouse=True)
def packaged_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "")


def small(**others: Any) -> SweepConfig:
    given: dict[str, Any] = {
        "workload": "castillo",
        "fleet": "2*llama-3-8b@a100",
        "limits": {"max_num_seqs": 4},
        "requests": 60,
        "router": ["round_robin", "lengthwise"],
        "policy": "fcfs",
        "load": [0.7, 0.9],
        "seeds": 2,
        **others,
    }
    return SweepConfig(**given)


def no_workers(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
    raise AssertionError(f"{len(tasks)} tasks are not in the cache")


class Counting:
    """Runs tasks in this process, in reverse order, and stops after `most`."""

    def __init__(self, most: int = sys.maxsize) -> None:
        self.most, self.done = most, 0

    def __call__(self, tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, one in reversed(list(enumerate(tasks))):
            if self.done == self.most:
                raise KeyboardInterrupt
            self.done += 1
            yield number, run_task(one)


def test_a_second_run_computes_nothing_and_returns_the_same_rows(tmp_path: Path) -> None:
    first = run_sweep(small(), ResultCache(tmp_path), in_processes(1))
    assert (first.from_cache, first.computed, len(first.rows)) == (0, 2 + 8, 8)
    assert [(row["load"], row["router"], row["seed"]) for row in first.rows[:4]] == [
        (0.7, "round_robin", 0),
        (0.7, "lengthwise", 0),
        (0.9, "round_robin", 0),
        (0.9, "lengthwise", 0),
    ]
    again = run_sweep(small(), ResultCache(tmp_path), no_workers)
    assert (again.from_cache, again.computed) == (10, 0)
    assert again.rows == first.rows


def test_an_interrupted_sweep_resumes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_sweep(small(), ResultCache(tmp_path), Counting(most=5))
    rest = Counting()
    resumed = run_sweep(small(), ResultCache(tmp_path), rest)
    assert (rest.done, resumed.from_cache) == (5, 5)
    assert resumed.rows == run_sweep(small(), ResultCache(tmp_path / "other"), Counting()).rows


def test_only_new_tasks_are_computed(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    run_sweep(small(), cache, Counting())
    wider = Counting()
    run_sweep(small(router=["round_robin", "lengthwise", "random"], load=[0.7, 0.9, 1.1]), cache, wider)
    assert wider.done == 2 * (2 + 3)  # each seed: `random` at two loads, all three at the new one
    charged = Counting()
    run_sweep(small(routing_time={"lengthwise": 5.0}), cache, charged)
    assert charged.done == 2 * 2, "only the router with the changed time"


def test_other_code_or_another_workload_misses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ResultCache(tmp_path)
    run_sweep(small(), cache, Counting())
    fewer = Counting()
    run_sweep(small(requests=50), cache, fewer)
    assert fewer.done == 10
    monkeypatch.setattr(tasks, "code_version", lambda: "another")
    changed = Counting()
    run_sweep(small(), cache, changed)
    assert changed.done == 10


def test_worker_processes_return_the_same_rows(tmp_path: Path) -> None:
    config = small(seeds=1, load=[0.9])
    one, two = (run_sweep(config, ResultCache(tmp_path / f"{jobs}"), in_processes(jobs)) for jobs in (1, 2))
    assert one.rows == two.rows


def test_two_sweeps_at_once_share_a_cache(tmp_path: Path) -> None:
    configs = [small(load=[0.7]), small(load=[0.7, 0.8]), small(load=[0.8])]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda config: run_sweep(config, ResultCache(tmp_path), in_processes(1)), configs))
    alone = [run_sweep(config, ResultCache(tmp_path), no_workers) for config in configs]
    assert [each.rows for each in together] == [each.rows for each in alone]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"], (
        "no temporary file is left"
    )


def test_an_unreadable_result_is_computed_again(tmp_path: Path) -> None:
    config = small(seeds=1, load=[0.9])
    first = run_sweep(config, ResultCache(tmp_path), Counting())
    min(tmp_path.rglob("*.json")).write_text('{"cut')
    mended = Counting()
    assert run_sweep(config, ResultCache(tmp_path), mended).rows == first.rows
    assert mended.done >= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workload: castillo", "field 'fleet'"),
        ("workload: castillo\nfleet: 2*llama-3-8b@a100\nrooter: e2", "known are workload, fleet"),
        ("workload: castillo\nfleet: 2*llama-3-8b@a100\nseeds: 0", "field 'seeds'"),
        ("- 1", "holds no fields"),
        ("a: [", "is not YAML"),
    ],
)
def test_an_error_in_a_file_names_its_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_sweep(path)
    assert message in str(error.value)


def test_wrong_names_are_errors_before_anything_is_computed(tmp_path: Path) -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"router": "e3"},
        {"policy": "sjff"},
        {"limits": {"admission_quantile": 0.9}},
        {"load": [0.5], "rate": [1.0]},
        {"down": "9@1"},
        {"predictor": "fats"},
    )
    for wrong in wrongs:
        with pytest.raises(InputError):
            run_sweep(small(**wrong), ResultCache(tmp_path), no_workers)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"Ray is not installed.*pip install .*\[ray\]"):
        on_ray("auto")


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "127.0.0.1:no"])
def test_an_unreachable_cluster_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    ray = ModuleType("ray")
    ray.is_initialized = lambda: False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(InputError, match="no Ray cluster at"):
        run_sweep(small(), ResultCache(tmp_path), on_ray(address.format(free_port())))
