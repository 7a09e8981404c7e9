"""A measurement that forces lengths: the forced limit is hidden from every prediction, and its end is an end."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from tests.engines.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from collections.abc import Callable, Iterator
from pathlib import Path

from vllm.tokenizers.registry import cached_get_tokenizer

from lengthwise.engines.forced_lengths import ForcedLengthPredictor, ForcedLengths
from lengthwise.engines.smollm2 import model_folder
from lengthwise.engines.vllm import LengthwiseScheduler
from lengthwise.predictors.service import PredictionService
from tests.engines.scheduling import Run, drain, make_request, make_scheduler, step, tiny_model
from tests.predictors.guesses import Guess

CAP = 256
SCALE = 0.5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Guess:
    made = Guess()
    monkeypatch.setattr(
        ForcedLengths, "service", lambda self, _: PredictionService(lambda: ForcedLengthPredictor(made, self))
    )
    return made


@pytest.fixture
def scheduler(model: Path, guess: Guess, tmp_path: Path) -> Iterator[Any]:
    measuring = {"forced_lengths": {"llm": "grown", "scale": SCALE}, "account": str(tmp_path / "account.json")}
    options: dict[str, Any] = {"policy": "sjf", "predictor": "fast", "tokenizer": model_folder()}
    made = make_scheduler(LengthwiseScheduler, model, slots=1, measuring=measuring, **options)
    yield made
    made.predictions.close()


@pytest.fixture
def ask() -> Callable[..., Any]:
    tokenizer: Any = cached_get_tokenizer(str(model_folder()))

    def request(name: str, text: str, length: int, cap: object = CAP) -> Any:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return make_request(name, len(ids), length, prompt=ids, said={} if cap is None else {"cap": cap})

    return request


def answered(scheduler: Any, count: int) -> None:
    end = time.monotonic() + 30
    while scheduler.predictions.counts.answered < count:
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.002)
    scheduler.predictions.deliver(scheduler._predict)


def test_the_true_length_does_not_reach_the_prediction(scheduler: Any, ask: Callable[..., Any]) -> None:
    """The same prompt forced to two lengths is predicted to be the same, and both stand where they came."""
    for name, length in (("long", 200), ("short", 3)):
        scheduler.add_request(ask(name, "about 100", length))
    answered(scheduler, 2)
    jobs = [scheduler.jobs.of(scheduler.requests[name]) for name in ("long", "short")]
    assert [job.max_tokens for job in jobs] == [CAP, CAP]
    assert [job.prediction.cap for job in jobs] == [CAP, CAP]
    assert jobs[0].prediction.mean() == jobs[1].prediction.mean()
    assert [job.prediction.quantile(0.5) for job in jobs] == pytest.approx([100 * SCALE] * 2)
    assert [request.request_id for request in scheduler.waiting] == ["long", "short"]


def test_nor_before_the_prediction_has_come(scheduler: Any, guess: Guess, ask: Callable[..., Any]) -> None:
    drain(scheduler, {0: [ask(str(n), "about 20", 10) for n in range(5)]})
    guess.gate.clear()
    for name, length in (("long", 200), ("short", 3)):
        scheduler.add_request(ask(name, "about 100", length))
    long, short = (scheduler.jobs.of(scheduler.requests[name]) for name in ("long", "short"))
    assert long.prediction is None
    assert short.prediction is None
    guess.gate.set()


def test_an_end_below_the_declared_limit_is_an_end_and_at_it_a_cut(
    scheduler: Any, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int | None, bool]] = []
    monkeypatch.setattr(
        scheduler.predictions, "ended", lambda _, tokens, censored=False: told.append((tokens, censored)), raising=True
    )
    drain(scheduler, {0: [ask("played", "about 10", 5)]})
    drain(scheduler, {0: [ask("at the limit", "about 10", 8, cap=8)]})
    drain(scheduler, {0: [ask("says nothing", "about 10", 5, cap=None)]})
    assert told == [(5, False), (8, True), (5, True)]


@pytest.mark.parametrize("bad", ["many", -4, 0, 10**12])
def test_a_bad_cap_stops_nothing(scheduler: Any, ask: Callable[..., Any], bad: object) -> None:
    run = drain(scheduler, {0: [ask("a", "about 10", 4, cap=bad)]})
    assert run.admitted == ["a"]


def test_the_history_is_that_of_the_played_llm(scheduler: Any, ask: Callable[..., Any]) -> None:
    scheduler.add_request(ask("a", "about 10", 5))
    assert scheduler.jobs.of(scheduler.requests["a"]).llm == "grown"


def test_what_predicting_took_is_written_when_nothing_is_left(
    scheduler: Any, ask: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "account.json"
    scheduler.add_request(ask("a", "about 10", 3))
    answered(scheduler, 1)
    run = Run()
    step(scheduler, run)
    assert not path.exists(), "not while anything runs"
    while scheduler.has_unfinished_requests():
        step(scheduler, run)
    told = json.loads(path.read_text())
    assert (told["asked"], told["answered"]) == (1, 1)
    assert math.isfinite(told["cpu_s"])
