from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.preble.study import Effort, PrebleStudy, study
from experiments.preble.traffic import castillo_prompts
from lengthwise.simulator.tasks import ResultCache, Task, TaskRunner, in_processes

SMALL = Effort(
    seeds=2,
    engines=(4, 8),
    rates=(32.0, 64.0),
    seconds=1.0,
    least=40,
    varied_engines=(8,),
    varied_rates=(64.0,),
    loads=(0.9,),
    shared_engines=2,
    shared_slots=4,
    shared_requests=60,
)
PREDICTOR = "noisy:0.5"


def nobody(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
    raise AssertionError(f"{len(tasks)} pieces were to be computed")


@pytest.fixture(autouse=True, scope="package")
def packaged_sample() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENGTHWISE_DATA", "")
        castillo_prompts.cache_clear()
        yield
    castillo_prompts.cache_clear()


@pytest.fixture(scope="package")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("preble")


@pytest.fixture(scope="package")
def found(cache: Path) -> PrebleStudy:
    return study(TaskRunner(ResultCache(cache), in_processes(1)), predictor=PREDICTOR, effort=SMALL)
