"""Predictions inside vLLM's scheduler: a request is queued at once and re-keyed when its prediction arrives."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from collections.abc import Callable, Iterator
from pathlib import Path

from vllm.tokenizers.registry import cached_get_tokenizer
from vllm.v1.request import Request, RequestStatus

from lengthwise.errors import InputError
from lengthwise.policies import Job, QueueView, make_policy
from lengthwise.predictors import PredictionInput, load_predictor
from lengthwise.predictors.contract import render_chat
from lengthwise.predictors.service import PredictionService
from lengthwise.predictors.state_file import StateFile
from lengthwise.vllm.scheduler import LengthwiseScheduler
from lengthwise.vllm.smollm2 import MODEL_NAME, model_folder
from tests.predictors.guesses import Guess
from tests.vllm.scheduling import Run, drain, make_request, make_scheduler, step, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return cached_get_tokenizer(str(model_folder()))


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guess]:
    """A predictor that returns the number at the end of a prompt, and can be made to hang."""
    made = Guess()
    monkeypatch.setattr("lengthwise.vllm.scheduler.prediction_service", lambda _, **__: PredictionService(lambda: made))
    yield made
    made.gate.set()


@pytest.fixture
def scheduler(model: Path, guess: Guess) -> Iterator[Any]:
    made = make_scheduler(LengthwiseScheduler, model, slots=1, policy="sjf", tokenizer=model_folder())
    yield made
    made.predictions.close()


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.002)


@pytest.fixture
def prompt_request(tokenizer: Any) -> Callable[..., Any]:
    def request(name: str, text: str, output_tokens: int = 8, **more: Any) -> Any:
        ids = tokenizer.encode(text, add_special_tokens=False)
        return make_request(name, len(ids), output_tokens, prompt=ids, **more)

    return request


def wait_for_predictions(scheduler: Any, count: int) -> None:
    wait_until(lambda: scheduler.predictions.counts.answered == count)


def test_a_late_prediction_re_keys_a_waiting_request_at_the_next_step(
    scheduler: Any, guess: Guess, prompt_request: Callable[..., Any]
) -> None:
    guess.gate.clear()
    for name, tokens in (("runs", 500), ("long", 900), ("short", 20)):
        scheduler.add_request(prompt_request(name, f"about {tokens}", 1000))
    run = Run()
    step(scheduler, run)
    assert run.admitted == ["runs"], "without predictions: first come, first served"
    assert [request.request_id for request in scheduler.waiting] == ["long", "short"]
    guess.gate.set()
    wait_for_predictions(scheduler, 3)
    assert [request.request_id for request in scheduler.waiting] == ["long", "short"], "not in the middle of a step"
    step(scheduler, run)
    assert [request.request_id for request in scheduler.waiting] == ["short", "long"]
    assert scheduler.predictions.counts.late == 1, "that of the running request"
    for name in ("runs", "long", "short"):
        scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


def test_the_service_knows_which_requests_run(scheduler: Any, prompt_request: Callable[..., Any]) -> None:
    for name in ("runs", "waits"):
        scheduler.add_request(prompt_request(name, "about 20", 1000))
    step(scheduler, Run())
    opened, orders = scheduler.predictions._open, scheduler.predictions._learned[None].orders
    assert {name: state.started for name, state in opened.items()} == {"runs": True, "waits": False}
    assert [len(order) for order in orders.values()] == [1]
    for name in ("runs", "waits"):
        scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    assert not orders


def test_a_predictor_that_hangs_or_raises_delays_no_step(
    scheduler: Any, guess: Guess, prompt_request: Callable[..., Any]
) -> None:
    guess.gate.clear()
    requests = [prompt_request(str(n), "hangs" if n else "1", 5) for n in range(6)]
    run = drain(scheduler, {0: requests})
    assert sorted(run.finished_at) == [str(n) for n in range(6)], "all finish while the predictor hangs"
    assert scheduler.predictions.counts.answered == 0
    guess.gate.set()
    wait_until(lambda: scheduler.predictions.counts.failed == 5)
    scheduler.schedule()
    assert scheduler.predictions.counts.late == scheduler.predictions.counts.answered == 1
    again = drain(scheduler, {0: [prompt_request("after", "7", 5)]})
    assert again.admitted == ["after"]


def test_the_prediction_of_an_aborted_request_is_dropped(
    scheduler: Any, guess: Guess, prompt_request: Callable[..., Any]
) -> None:
    guess.gate.clear()
    scheduler.add_request(prompt_request("aborted", "about 10"))
    scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    guess.gate.set()
    wait_for_predictions(scheduler, 1)
    drain(scheduler, {0: [prompt_request("next", "about 10", 4)]})
    assert scheduler.predictions.counts.late >= 1
    wait_until(lambda: scheduler.predictions.counts.observed == 1)  # of `next`; `aborted` never ran


def test_a_declared_length_replaces_the_prediction(
    scheduler: Any, guess: Guess, prompt_request: Callable[..., Any]
) -> None:
    requests = [
        prompt_request("declared long", "about 5", 1000, extra_args={"expected_tokens": 800}),
        prompt_request("declared short", "about 900", 1000, extra_args={"length_mu": 2.0, "length_sigma": 0.1}),
        prompt_request("predicted", "about 300", 1000),
    ]
    for request in requests:
        scheduler.add_request(request)
    wait_for_predictions(scheduler, 1)
    scheduler.predictions.deliver(scheduler._predict)
    assert [request.request_id for request in scheduler.waiting] == ["declared short", "predicted", "declared long"]
    assert guess.predicted == ["about 300"]


def test_a_lazy_predictor_starts_at_the_first_request_without_a_prediction(
    model: Path, guess: Guess, monkeypatch: pytest.MonkeyPatch, prompt_request: Callable[..., Any]
) -> None:
    started: list[str] = []

    def load() -> Guess:
        started.append("predictor")
        return guess

    monkeypatch.setattr("lengthwise.vllm.scheduler.prediction_service", lambda _, **__: PredictionService(load))
    options: dict[str, Any] = {"policy": "sjf", "tokenizer": model_folder(), "measuring": {"warm_predictor": False}}
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=1, **options)
    declared = [
        prompt_request(str(n), f"about {n}", 8, extra_args={"length_mu": 2.0, "length_sigma": 0.5}) for n in range(5)
    ]
    drain(scheduler, {0: [*declared, prompt_request("hint", "about 9", 8, extra_args={"expected_tokens": 3})]})
    assert scheduler.predictions.counts.asked == 0
    assert not started
    scheduler.add_request(prompt_request("bare", "about 300", 8))
    wait_for_predictions(scheduler, 1)
    assert started == ["predictor"]
    scheduler.finish_requests("bare", RequestStatus.FINISHED_ABORTED)
    scheduler.predictions.close()


def test_a_request_whose_prediction_fails_gets_the_history_of_its_llm(
    scheduler: Any, guess: Guess, prompt_request: Callable[..., Any]
) -> None:
    stopping = {"stop_token_ids": [7]}  # every sampled token is a 7
    short = [prompt_request(f"short{n}", "4", 1000, extra_args={"expected_tokens": 4}, **stopping) for n in range(60)]
    drain(scheduler, {0: short})
    assert {request.num_output_tokens for request in short} == {1}
    guess.gate.clear()
    scheduler.add_request(prompt_request("unknown", "no number", 1000))
    job = scheduler.jobs.of(scheduler.requests["unknown"])
    assert not job.prediction, "it has not arrived"
    guess.gate.set()
    wait_until(lambda: scheduler.predictions.deliver(scheduler._predict) or job.prediction)
    assert job.prediction.mean() < 20, "the answers of this LLM were short"


@pytest.mark.parametrize(
    ("status", "sampling", "learned"),
    [
        (RequestStatus.FINISHED_STOPPED, {}, (3, False)),
        (RequestStatus.FINISHED_LENGTH_CAPPED, {}, (3, True)),
        (RequestStatus.FINISHED_ABORTED, {}, (3, True)),
        # vLLM matches stop strings outside the engine, which receives an abort.
        (RequestStatus.FINISHED_ABORTED, {"stop": ["\n\n"], "detokenize": True}, (3, False)),
        (RequestStatus.FINISHED_ERROR, {}, None),
        (RequestStatus.FINISHED_IGNORED, {}, None),
    ],
)
def test_the_length_of_every_finished_request_is_observed_once_and_censored_by_its_status(
    scheduler: Any,
    prompt_request: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    status: RequestStatus,
    sampling: dict[str, Any],
    learned: tuple[int, bool] | None,
) -> None:
    observed: list[tuple[int | None, bool]] = []
    ended = scheduler.predictions.ended

    def noting(key: str, tokens: int | None, *, censored: bool = False) -> None:
        observed.append((tokens, censored))
        ended(key, tokens, censored=censored)

    monkeypatch.setattr(scheduler.predictions, "ended", noting)
    scheduler.add_request(prompt_request("a", "about 10", 100, **sampling))
    wait_for_predictions(scheduler, 1)
    run = Run()
    for _ in range(3):
        step(scheduler, run)
    assert scheduler.requests["a"].num_output_tokens == 3
    scheduler.finish_requests("a", status)
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert observed == [learned or (None, False)]
    drain(scheduler, {0: [prompt_request("after", "about 10", 2)]})  # lengths are learned at the next admission
    wait_until(lambda: scheduler.predictions.counts.observed == (1 if learned is None else 2))


def test_the_lengths_of_complete_answers_are_observed(scheduler: Any, prompt_request: Callable[..., Any]) -> None:
    drain(scheduler, {0: [prompt_request(str(n), f"about {n + 1}", 2 + n) for n in range(5)]})
    wait_until(lambda: scheduler.predictions.counts.observed == 5)


def test_the_cap_is_the_rest_of_the_context(scheduler: Any, prompt_request: Callable[..., Any]) -> None:
    scheduler.add_request(prompt_request("a", "about 5000", 100_000))
    job = scheduler.jobs.of(scheduler.requests["a"])
    assert job.max_tokens == 4096 - job.prompt_tokens


def test_under_fcfs_nothing_is_loaded_or_predicted_until_the_policy_changes(
    model: Path, guess: Guess, prompt_request: Callable[..., Any]
) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=1, policy="fcfs", tokenizer=model_folder())
    for name, tokens in (("long", 900), ("short", 20)):
        scheduler.add_request(prompt_request(name, f"about {tokens}", 1000))
    assert scheduler.predictions.counts.asked == guess.calls == 0
    scheduler.use(replace(scheduler.setup, policy="sjf"))
    wait_for_predictions(scheduler, 2)
    run = Run()
    step(scheduler, run)
    assert run.admitted == ["short"], "waiting requests are predicted once the order depends on it"
    scheduler.shutdown()


def test_without_a_tokenizer_only_the_history_predicts(model: Path, guess: Guess) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, model, policy="sjf")
    drain(scheduler, {0: [make_request(str(n), 8, 5) for n in range(4)]})
    assert scheduler.predictions.counts.asked == guess.calls == 0


def test_the_predictor_comes_from_options_or_the_environment(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def choosing(name: str, **_: str) -> PredictionService:
        chosen.append(name)
        return PredictionService(None)

    monkeypatch.setattr("lengthwise.vllm.scheduler.prediction_service", choosing)
    make_scheduler(LengthwiseScheduler, model)
    monkeypatch.setenv("LENGTHWISE_PREDICTOR", "default")
    make_scheduler(LengthwiseScheduler, model)
    make_scheduler(LengthwiseScheduler, model, predictor="none")
    assert chosen == ["fast", "default", "none"]
    with pytest.raises(InputError, match="there is no predictor 'fats'"):
        make_scheduler(LengthwiseScheduler, model, predictor="fats")


CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "user", "content": "Write a long story about a dragon who learns to cook, with many details."}],
    [{"role": "system", "content": "Answer with one word."}, {"role": "user", "content": "Capital of France?"}],
    [{"role": "user", "content": "def add(a, b):\n    '''Add two numbers.'''\n"}],
    [
        {"role": "user", "content": "Explain quicksort."},
        {"role": "assistant", "content": "It divides and conquers."},
        {"role": "user", "content": "Now in Python, with comments and tests."},
    ],
    [{"role": "user", "content": "Solve x^2 - 5x + 6 = 0. Answer:"}],
]


@pytest.mark.parametrize("predictor", ["fast", "default"])
def test_the_order_inside_vllm_is_that_of_the_predictors_own_predictions(
    model: Path, tokenizer: Any, predictor: str
) -> None:
    scheduler = make_scheduler(
        LengthwiseScheduler, model, slots=1, policy="sjf", predictor=predictor, tokenizer=model_folder()
    )
    own, sjf = load_predictor(predictor), make_policy("sjf")

    def key(job: Job) -> float:
        return float(sjf.key(job, QueueView(), 0.0))

    direct = {}
    for number, chat in enumerate(CHATS):
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False)
        scheduler.add_request(make_request(str(number), len(ids), 2000, prompt=ids))
        prediction = own.predict([PredictionInput(render_chat(chat), MODEL_NAME, 2000)])[0]
        direct[str(number)] = key(Job(str(number), 0.0, prediction=prediction, max_tokens=2000))
    wait_for_predictions(scheduler, len(CHATS))
    scheduler.predictions.deliver(scheduler._predict)
    keys = {job.id: key(job) for job in map(scheduler.jobs.of, scheduler.waiting)}
    assert keys == pytest.approx(direct, rel=1e-5)
    assert [request.request_id for request in scheduler.waiting] == sorted(direct, key=direct.__getitem__)
    scheduler.shutdown()


@pytest.mark.parametrize("caching", [True, False])
def test_prefix_memory_learns_from_the_blocks_of_prompts(model: Path, caching: bool) -> None:
    scheduler = make_scheduler(
        LengthwiseScheduler, model, policy="sjf", predictor="none", prefix_caching=caching, slots=8
    )
    prompts = {name: list(range(start, start + 200)) for name, start in (("short", 0), ("long", 500))}

    def numbered_request(name: str, number: int, tokens: int) -> Request:
        return make_request(f"{name} {number}", 0, tokens, prompt=[*prompts[name], number], extra_args={"cap": 1000})

    tokens = {"short": 2, "long": 60}
    drain(scheduler, {0: [numbered_request(name, number, n) for number in range(20) for name, n in tokens.items()]})
    medians = {}
    for name in prompts:
        scheduler.add_request(numbered_request(name, 99, 5))
        medians[name] = scheduler.jobs.of(scheduler.requests[f"{name} 99"]).prediction.quantile(0.5)
    assert medians["short"] < 6
    assert medians["long"] > 30
    scheduler.shutdown()


def test_learning_can_be_turned_off(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def learns(**options: bool) -> bool:
        scheduler = make_scheduler(LengthwiseScheduler, model, predictor="none", measuring=options)
        return bool(scheduler.predictions.learning)

    assert learns()
    assert not learns(learning=False)
    monkeypatch.setenv("LENGTHWISE_LEARNING", "off")
    assert not learns()
    assert learns(learning=True)


def test_the_old_setting_of_prefix_memory_is_an_error_that_names_the_new_ones(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead = "is gone: prefix memory is part of `learning`, and is kept in `state`"
    with pytest.raises(InputError, match=f"memory: {instead}"):
        make_scheduler(LengthwiseScheduler, model, predictor="none", measuring={"memory": "off"})
    monkeypatch.setenv("LENGTHWISE_MEMORY", "off")
    with pytest.raises(InputError, match=f"LENGTHWISE_MEMORY: {instead}"):
        make_scheduler(LengthwiseScheduler, model, predictor="none")


def test_a_request_that_runs_at_once_is_predicted_by_the_quick_predictor(
    model: Path, monkeypatch: pytest.MonkeyPatch, prompt_request: Callable[..., Any]
) -> None:
    default, quick = Guess(), Guess()
    service = PredictionService(lambda: default, quick=quick)
    monkeypatch.setattr("lengthwise.vllm.scheduler.prediction_service", lambda _, **__: service)
    monkeypatch.setattr(service, "sample_due", lambda: False)
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=2, policy="lengthwise", tokenizer=model_folder())
    run = Run()
    for name in ("first", "second", "waits"):
        scheduler.add_request(prompt_request(name, f"{name} about 100", 1000))
        step(scheduler, run)
    wait_for_predictions(scheduler, 3)
    assert run.admitted == ["first", "second"]
    assert sorted(text.split()[0] for text in quick.predicted) == ["first", "second"]
    assert [text.split()[0] for text in default.predicted] == ["waits"]
    for name in ("first", "second", "waits"):
        scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    service.close()


def test_a_predictor_of_another_package_learns_from_the_answers_and_its_state_is_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt_request: Callable[..., Any]
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path.cwd() / 'src'}")  # of the predictor's process
    monkeypatch.setenv("LENGTHWISE_STATE", str(tmp_path))
    learner = "tests.conformance.outside_predictor:LastLength"
    scheduler = make_scheduler(
        LengthwiseScheduler, model, slots=1, policy="sjf", predictor=learner, tokenizer=model_folder()
    )
    scheduler.add_request(prompt_request("a", "about", 7))
    wait_for_predictions(scheduler, 1)
    drain(scheduler, {})
    wait_until(lambda: scheduler.predictions.counts.learned == 1)
    scheduler.shutdown()
    (file,) = tmp_path.glob("engine-*.state")
    kept = StateFile(file).read()
    assert (kept.predictor, kept.parts["predictor"]) == (learner, b"{}"), "its answer was cut off"
