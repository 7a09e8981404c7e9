"""Forced lengths: no prediction depends on the forced limit, and an answer that ends there counts as complete."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from collections.abc import Callable, Iterator
from pathlib import Path

from vllm.tokenizers.registry import cached_get_tokenizer

from lengthwise.predictors.service import PredictionService
from lengthwise.vllm.forced_lengths import ForcedLengths
from lengthwise.vllm.scheduler import LengthwiseScheduler
from lengthwise.vllm.smollm2 import model_folder
from tests.predictors.guesses import Guess
from tests.vllm.scheduling import Run, drain, make_request, make_scheduler, step, tiny_model

CAP = 256
SCALE = 0.5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Guess:
    made = Guess()
    monkeypatch.setattr(ForcedLengths, "service", lambda self, _: PredictionService(lambda: made, frame=self))
    return made


@pytest.fixture
def scheduler(model: Path, guess: Guess, tmp_path: Path) -> Iterator[Any]:
    measuring = {"forced_lengths": {"llm": "grown", "scale": SCALE}, "account": str(tmp_path / "account.json")}
    options: dict[str, Any] = {"policy": "sjf", "predictor": "fast", "tokenizer": model_folder()}
    made = make_scheduler(LengthwiseScheduler, model, slots=1, measuring=measuring, **options)
    yield made
    made.predictions.close()


@pytest.fixture
def prompt_request() -> Callable[..., Any]:
    tokenizer: Any = cached_get_tokenizer(str(model_folder()))

    def request(name: str, text: str, length: int, cap: object = CAP) -> Any:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return make_request(name, len(ids), length, prompt=ids, extra_args={} if cap is None else {"cap": cap})

    return request


def deliver_predictions(scheduler: Any, count: int) -> None:
    end = time.monotonic() + 60
    while scheduler.predictions.counts.answered < count:
        assert time.monotonic() < end, "the predictions did not arrive in time"
        time.sleep(0.002)
    scheduler.predictions.deliver(scheduler._predict)


def test_the_true_length_does_not_reach_the_prediction(scheduler: Any, prompt_request: Callable[..., Any]) -> None:
    """The same prompt forced to two lengths has the same prediction, and both keep the order of arrival."""
    for name, length in (("long", 200), ("short", 3)):
        scheduler.add_request(prompt_request(name, "about 100", length))
    deliver_predictions(scheduler, 2)
    jobs = [scheduler.jobs.of(scheduler.requests[name]) for name in ("long", "short")]
    assert [job.max_tokens for job in jobs] == [CAP, CAP]
    assert [job.prediction.cap for job in jobs] == [CAP, CAP]
    assert jobs[0].prediction.mean() == jobs[1].prediction.mean()
    assert [job.prediction.quantile(0.5) for job in jobs] == pytest.approx([100 * SCALE] * 2)
    assert [request.request_id for request in scheduler.waiting] == ["long", "short"]


def test_a_request_waits_without_a_prediction_until_one_arrives(
    scheduler: Any, guess: Guess, prompt_request: Callable[..., Any]
) -> None:
    drain(scheduler, {0: [prompt_request(str(n), "about 20", 10) for n in range(5)]})
    guess.gate.clear()
    for name, length in (("long", 200), ("short", 3)):
        scheduler.add_request(prompt_request(name, "about 100", length))
    long, short = (scheduler.jobs.of(scheduler.requests[name]) for name in ("long", "short"))
    assert long.prediction is None
    assert short.prediction is None
    guess.gate.set()


def test_an_answer_is_complete_below_the_declared_cap_and_censored_at_it(
    scheduler: Any, prompt_request: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[int | None, bool]] = []
    monkeypatch.setattr(
        scheduler.predictions, "ended", lambda _, tokens, censored=False: ended.append((tokens, censored)), raising=True
    )
    drain(scheduler, {0: [prompt_request("below the cap", "about 10", 5)]})
    drain(scheduler, {0: [prompt_request("at the cap", "about 10", 8, cap=8)]})
    drain(scheduler, {0: [prompt_request("no cap", "about 10", 5, cap=None)]})
    assert ended == [(5, False), (8, True), (5, True)]


@pytest.mark.parametrize("bad", ["many", -4, 0, 10**12])
def test_a_bad_cap_stops_nothing(scheduler: Any, prompt_request: Callable[..., Any], bad: object) -> None:
    run = drain(scheduler, {0: [prompt_request("a", "about 10", 4, cap=bad)]})
    assert run.admitted == ["a"]


def test_the_history_is_that_of_the_forced_llm(scheduler: Any, prompt_request: Callable[..., Any]) -> None:
    scheduler.add_request(prompt_request("a", "about 10", 5))
    assert scheduler.jobs.of(scheduler.requests["a"]).llm == "grown"


def test_the_account_of_predictions_is_written_when_the_engine_is_idle(
    scheduler: Any, prompt_request: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "account.json"
    scheduler.add_request(prompt_request("a", "about 10", 3))
    deliver_predictions(scheduler, 1)
    run = Run()
    step(scheduler, run)
    assert not path.exists(), "not while a request runs"
    while scheduler.has_unfinished_requests():
        step(scheduler, run)
    account = json.loads(path.read_text())
    assert (account["asked"], account["answered"]) == (1, 1)
    assert math.isfinite(account["cpu_s"])
