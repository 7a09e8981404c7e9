"""The prediction service: requests, deliveries, learning and failures of the predictor, for a host that never waits."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution
from lengthwise.predictors import PredictionInput, load_predictor
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.prefix_memory import PrefixMemory, scopes_of
from lengthwise.predictors.resolve import packaged_predictors
from lengthwise.predictors.served import Predicted, ServedPredictors
from lengthwise.predictors.service import PredictionService, known_predictor, prediction_service
from lengthwise.predictors.state_file import Kept, StateFile
from lengthwise.predictors.subprocess_predictor import SubprocessPredictor
from lengthwise.prefixes import Scopes
from tests.predictors.guesses import Guess


@dataclass
class Host:
    """A host of the service: it stores delivered predictions and knows which requests are waiting."""

    service: PredictionService
    waiting: set[str] = field(default_factory=set)
    taken: dict[str, LengthDistribution] = field(default_factory=dict)

    def arrive(self, key: str, text: str | None = None, llm: str = "m", ask: bool = True) -> LengthDistribution | None:
        self.waiting.add(key)
        history = self.service.admit(key, llm, 1000)
        if ask:
            self.service.ask(key, lambda: PredictionInput(text or f"about {key} 100", llm, 1000))
        return history

    def take(self, key: str, prediction: LengthDistribution) -> bool:
        assert key not in self.taken, "a prediction is given once"
        self.taken[key] = prediction
        return key in self.waiting

    def deliver(self) -> None:
        self.service.deliver(self.take)

    def until(self, done: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not done():
            self.deliver()
            assert time.monotonic() < end, "the condition did not become true in time"
            time.sleep(0.001)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def guess() -> Iterator[Guess]:
    made = Guess()
    yield made
    made.gate.set()


@pytest.fixture
def host(guess: Guess) -> Iterator[Host]:
    host = Host(PredictionService(lambda: guess))
    yield host
    guess.gate.set()
    host.service.close()


def test_a_prediction_is_delivered_later_and_is_the_predictors(host: Host) -> None:
    assert host.arrive("a", "long 400") is None
    host.until(lambda: "a" in host.taken)
    assert host.taken["a"].quantile(0.5) == pytest.approx(400)
    assert host.taken["a"].cap == 1000
    assert (host.service.counts.answered, host.service.counts.late) == (1, 0)


def test_predictions_of_the_service_equal_those_of_its_predictor() -> None:
    host = Host(prediction_service("fast"))
    prompts = {str(n): text for n, text in enumerate(["Hello", "Write a long story about a dragon.", "def f(x):", ""])}
    for key, text in prompts.items():
        request = PredictionInput(text, "meta-llama/Llama-3.1-8B-Instruct", 2000)
        host.service.admit(key, request.llm, 2000)
        host.service.ask(key, lambda request=request: request)  # type: ignore[misc]
    host.until(lambda: len(host.taken) == len(prompts))
    for key, text in prompts.items():
        own = load_predictor("fast").predict([PredictionInput(text, "meta-llama/Llama-3.1-8B-Instruct", 2000)])[0]
        assert host.taken[key].mean() == pytest.approx(own.mean(), rel=1e-5)
        assert host.taken[key].quantile(0.9) == pytest.approx(own.quantile(0.9), rel=1e-5)
    assert host.service.counts.cpu_s > 0
    host.service.close()


def test_failures_of_the_predictor_are_counted_and_logged_once(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.arrive("a", "no number")
    host.arrive("b", "no number here")
    host.arrive("c", "good 50")
    host.until(lambda: host.service.counts.failed == 2 and "c" in host.taken)
    assert set(host.taken) == {"c"}, "a prompt that fails does not fail the others of its batch"
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "ValueError" in warnings[0].message


def test_a_request_whose_prediction_fails_gets_the_history(host: Host) -> None:
    host.arrive("a", ask=False)
    host.service.ended("a", 40)
    history = host.service.admit("b", "m", 1000)
    host.waiting.add("b")
    assert host.service.ask("b", lambda: PredictionInput("no number", "m", 1000))
    host.until(lambda: "b" in host.taken)
    assert host.taken["b"] is history
    assert not PredictionService(None).ask("c", lambda: PredictionInput("", "m")), (
        "without a predictor nothing is delivered"
    )


def test_predictions_for_learning_are_limited_per_second(guess: Guess) -> None:
    clock = Clock()
    service = PredictionService(lambda: guess, clock=clock)
    asked = []
    for second in range(3):
        clock.now = float(second)
        for number in range(100):
            key = f"{second}-{number}"
            service.admit(key, "m", 1000)
            service.ask_to_learn(key, lambda: PredictionInput("about 100", "m", 1000))
        asked.append(service.counts.asked)
    service.close()
    assert asked == [40, 60, 80]


def test_predictions_for_learning_are_limited_in_cpu_time(guess: Guess) -> None:
    class Slow(SubprocessPredictor):
        """A stand-in for a process that takes 25 ms of CPU time per prediction."""

        def serve(self, place: int, inputs: Sequence[PredictionInput], numbers: object) -> Predicted:
            self.cpu_s += 0.025 * len(inputs)
            return Predicted(guess.predict(inputs), None)

        def keep_tenants_apart(self, apart: bool) -> None: ...

    clock, process = Clock(), Slow("slow")
    host = Host(PredictionService(lambda: process, clock=clock, process=process))
    host.arrive("first")
    host.until(lambda: "first" in host.taken)
    due = []
    for second in range(4):
        clock.now = 100.0 + second
        due.append(sum(host.service.sample_due() for _ in range(100)))
    assert due == [40, 2, 2, 2], "first the burst, then 50 ms of CPU time per second"


def test_quick_requests_are_answered_by_the_quick_predictor(guess: Guess) -> None:
    quick = Guess()
    host = Host(PredictionService(lambda: guess, quick=quick))
    for key in ("a", "b"):
        host.service.admit(key, "m", 1000)
    host.service.ask("a", lambda: PredictionInput("a about 100", "m", 1000), quick=True)
    host.service.ask("b", lambda: PredictionInput("b about 100", "m", 1000))
    host.until(lambda: len(host.taken) == 2)
    assert (quick.predicted, guess.predicted) == (["a about 100"], ["b about 100"])


def test_an_unreadable_prompt_fails_only_its_own_request(host: Host) -> None:
    def unreadable() -> PredictionInput:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd")

    host.service.admit("odd", "m", None)
    host.service.ask("odd", unreadable)
    host.arrive("fine")
    host.until(lambda: "fine" in host.taken)
    assert (host.service.counts.failed, host.service.counts.answered) == (1, 1)


def test_a_predictor_that_cannot_be_loaded_fails_its_requests_and_not_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = 0

    def broken() -> Guess:
        nonlocal tries
        tries += 1
        raise InputError("is no model file")

    host = Host(PredictionService(broken))
    host.arrive("a")
    host.until(lambda: host.service.counts.failed == 1)
    host.arrive("b")
    host.until(lambda: host.service.counts.failed == 2)
    host.service.ended("a", 10)
    assert tries == 1
    assert [record.message for record in caplog.records if "cannot be loaded" in record.message]
    host.service.close()


def test_a_predictor_may_load_for_longer_than_it_may_take_to_predict() -> None:
    clock, guess, loading, loaded = Clock(), Guess(), threading.Event(), threading.Event()

    def load() -> Guess:
        loading.set()
        assert loaded.wait(60)
        return guess

    host = Host(PredictionService(load, patience_s=10, load_patience_s=60, clock=clock))
    host.arrive("a")
    assert loading.wait(60)
    clock.now = 50
    host.deliver()
    assert host.service.counts.hung == 0
    clock.now = 61
    host.deliver()
    assert host.service.counts.hung == 1
    loaded.set()
    host.until(lambda: "a" in host.taken)
    host.service.close()


def test_a_predictor_that_hangs_is_logged_once_and_gets_no_requests_until_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, guess = Clock(), Guess()
    host = Host(PredictionService(lambda: guess, patience_s=10, clock=clock))
    guess.gate.clear()
    host.arrive("a")
    assert guess.inside.wait(60)
    host.deliver()
    assert host.service.counts.hung == 0
    clock.now = 11
    host.deliver()
    host.arrive("b")
    host.deliver()
    counts = host.service.counts
    assert (counts.hung, counts.dropped, counts.asked, counts.answered) == (1, 1, 2, 0)
    assert len([record for record in caplog.records if "not returned" in record.message]) == 1
    # Meanwhile the history learns, and the host uses it.
    host.service.ended("b", 300)
    assert host.arrive("c") is not None
    # The predictor returns: its answer is late, and it gets requests again.
    host.waiting.discard("a")
    guess.gate.set()
    host.until(lambda: "a" in host.taken)
    host.arrive("d")
    host.until(lambda: "d" in host.taken)
    assert (host.service.counts.late, host.service.counts.dropped) == (1, 2)
    host.service.close()


def test_an_idle_predictor_is_not_taken_for_hanging() -> None:
    clock, guess = Clock(), Guess()
    host = Host(PredictionService(lambda: guess, clock=clock))
    host.service.warm()
    host.until(lambda: host.service.ready)
    clock.now = 1000.0
    host.arrive("a")
    host.until(lambda: "a" in host.taken)
    clock.now = 2000.0
    host.arrive("b")
    host.until(lambda: "b" in host.taken)
    assert (host.service.counts.hung, host.service.counts.dropped) == (0, 0)
    host.service.close()


def test_a_service_is_ready_once_its_predictor_is_loaded_and_while_it_is_idle(host: Host, guess: Guess) -> None:
    assert not host.service.ready
    host.service.warm()
    host.until(lambda: host.service.ready)
    guess.gate.clear()
    host.arrive("a")
    assert guess.inside.wait(60)
    assert not host.service.ready, "it predicts"
    guess.gate.set()
    host.until(lambda: host.service.ready and "a" in host.taken)


def test_a_stopping_host_does_not_wait_for_a_predictor_that_hangs(guess: Guess) -> None:
    host = Host(PredictionService(lambda: guess))
    guess.gate.clear()
    host.arrive("a")
    assert guess.inside.wait(60)
    host.service.close()
    assert guess.calls == 1


def test_late_predictions_are_counted_and_those_of_ended_requests_are_not_delivered(host: Host, guess: Guess) -> None:
    guess.gate.clear()
    for key in ("waits", "runs", "ended"):
        host.arrive(key)
    host.waiting -= {"runs"}
    host.service.ended("ended", None)
    guess.gate.set()
    host.until(lambda: host.service.counts.late == 2)
    assert set(host.taken) == {"waits", "runs"}


def test_a_reused_key_does_not_get_the_prediction_of_the_earlier_request(host: Host, guess: Guess) -> None:
    guess.gate.clear()
    host.arrive("same", "first 400")
    assert guess.inside.wait(60)
    host.service.ended("same", None)
    host.arrive("same", "second 50")
    guess.gate.set()
    host.until(lambda: "same" in host.taken)
    assert host.taken["same"].quantile(0.5) == pytest.approx(50)
    assert host.service.counts.late == 1


def test_a_full_queue_drops_requests(guess: Guess) -> None:
    host = Host(PredictionService(lambda: guess, max_waiting=3))
    guess.gate.clear()
    for n in range(50):
        host.arrive(str(n))
    guess.gate.set()
    host.until(lambda: host.service.counts.answered + host.service.counts.dropped == 50)
    assert host.service.counts.dropped >= 50 - 3 - 3 - 2  # in the queue, in the worker
    host.service.close()


def test_a_request_past_its_deadline_is_dropped(guess: Guess) -> None:
    clock = Clock()
    host = Host(PredictionService(lambda: guess, patience_s=1000, deadline_s=30, clock=clock))
    guess.gate.clear()
    host.arrive("first")
    assert guess.inside.wait(60)
    host.arrive("old")
    clock.now = 31
    host.arrive("new")
    guess.gate.set()
    host.until(lambda: {"first", "new"} <= set(host.taken))
    assert "about old 100" not in guess.predicted
    assert host.service.counts.dropped == 1
    host.service.close()


def test_the_quick_predictor_answers_when_the_other_does_not_keep_up(guess: Guess) -> None:
    clock, quick = Clock(), Guess()
    host = Host(PredictionService(lambda: guess, patience_s=1000, clock=clock, quick=quick, keep_up_s=0.5))
    guess.gate.clear()
    host.arrive("first")
    assert guess.inside.wait(60)
    for n in range(40):
        host.arrive(f"old{n}")
    clock.now = 0.6
    host.arrive("new")
    guess.gate.set()
    host.until(lambda: len(host.taken) == 42)
    assert sorted(guess.predicted) == ["about first 100", "about new 100"]
    assert len(quick.predicted) == host.service.counts.quick == 40
    for n in range(40):
        host.service.ended(f"old{n}", 1000)
    host.until(lambda: host.service.counts.observed == 40)
    clock.now = 2.0
    host.arrive("after")
    host.until(lambda: "after" in host.taken)
    assert host.taken["after"].quantile(0.5) == host.taken["new"].quantile(0.5), (
        "the quick predictor's answers do not change the calibration of the other"
    )
    host.service.close()


def test_without_a_quick_predictor_old_requests_are_answered_late(guess: Guess) -> None:
    clock = Clock()
    host = Host(PredictionService(lambda: guess, patience_s=1000, clock=clock))
    guess.gate.clear()
    host.arrive("first")
    assert guess.inside.wait(60)
    host.arrive("old")
    clock.now = 5.0
    guess.gate.set()
    host.until(lambda: set(host.taken) == {"first", "old"})
    assert (host.service.counts.answered, host.service.counts.quick) == (2, 0)
    host.service.close()


def test_without_a_prediction_the_history_of_the_llm_is_used_and_without_one_the_wide_prior(host: Host) -> None:
    assert host.arrive("first", ask=False) is None
    host.service.ended("first", 40)
    for n in range(200):
        host.arrive(f"short{n}", llm="terse", ask=False)
        host.service.ended(f"short{n}", 20)
        host.arrive(f"long{n}", llm="wordy", ask=False)
        host.service.ended(f"long{n}", 900)
    terse, wordy, unknown = (host.arrive(llm, llm=llm, ask=False) for llm in ("terse", "wordy", "unknown"))
    assert terse is not None
    assert wordy is not None
    assert unknown is not None
    assert terse.mean() < 40 < 500 < wordy.mean()
    assert terse.mean() < unknown.mean() < wordy.mean()


def test_answers_of_an_llm_are_learned_from_in_the_order_in_which_their_requests_started(host: Host) -> None:
    service = host.service
    for key, llm in (("long", "m"), ("short", "m"), ("other", "n"), ("not reported", "n")):
        host.arrive(key, llm=llm, ask=False)
        if key != "not reported":
            service.started(key)
            service.started(key)
    service.ended("short", 10)
    assert service.from_history("m", 1000) is None, "a shorter answer that started later waits"
    service.ended("not reported", 300)
    other = service.from_history("n", 1000)
    assert other is not None, "nothing waits for a request of another LLM, or without a start"
    service.ended("long", 800)
    service.ended("other", None)
    both = service.from_history("m", 1000)
    assert both is not None
    assert both.mean() > 100
    service.started("gone")
    assert not any(each.orders for each in service._learned.values())


def test_answers_that_wait_for_an_earlier_one_are_learned_from_at_the_end(guess: Guess, tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state")
    host = Host(PredictionService(lambda: guess, state=state))
    for key in ("long", "short"):
        host.arrive(key)
        host.service.started(key)
    host.until(lambda: len(host.taken) == 2)
    host.service.ended("short", 10)
    host.service.close()
    assert json.loads(state.read().parts["history"])["pooled"]["seen"] == 1


def test_the_history_treats_censored_answers_as_lower_bounds() -> None:
    means = {}
    for censored in (True, False):
        host = Host(PredictionService(None))
        for n in range(100):
            host.arrive(str(n))
            host.service.ended(str(n), 100, censored=censored)
        history = host.arrive("next")
        assert history is not None
        means[censored] = history.mean()
    assert means[True] > 1.5 * means[False]


def test_an_answer_without_a_length_is_not_learned_from(host: Host) -> None:
    for n, (tokens, censored) in enumerate([(0, True), (None, False), (None, True)]):
        host.arrive(str(n))
        host.until(lambda n=n: str(n) in host.taken)  # type: ignore[misc]
        host.service.ended(str(n), tokens, censored=censored)
    assert host.arrive("next") is None
    host.until(lambda: "next" in host.taken)
    assert host.service.counts.observed == 0


def test_the_calibration_follows_answers_that_are_twice_as_long_as_predicted(host: Host) -> None:
    for n in range(200):
        host.arrive(str(n), "predicted 100")
        host.until(lambda n=n: str(n) in host.taken)  # type: ignore[misc]
        host.service.ended(str(n), 200)
    host.until(lambda: host.service.counts.observed == 200)
    host.arrive("next", "predicted 100")
    host.until(lambda: "next" in host.taken)
    assert host.taken["next"].quantile(0.5) == pytest.approx(200, rel=0.15)


def test_without_a_predictor_no_prediction_is_requested() -> None:
    host = Host(prediction_service("none"))
    host.arrive("a")
    host.deliver()
    host.service.ended("a", 5)
    host.service.warm()
    host.service.close()
    assert not host.service.predicts
    assert host.service.counts.asked == 0


def test_a_predictor_is_named_or_a_file_and_an_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [known_predictor(name) for name in ("none", "fast", "default")] == ["none", "fast", "default"]
    with pytest.raises(InputError, match="there is no predictor 'fats'; did you mean fast"):
        known_predictor("fats")
    with pytest.raises(InputError, match="is not a file"):
        known_predictor(str(tmp_path / "missing.lw"))
    mine = tmp_path / "mine.lw"
    mine.write_bytes(packaged_predictors()["fast"].read_bytes())
    monkeypatch.chdir(tmp_path)
    assert known_predictor("mine.lw") == str(mine), "a child process may have another working folder"
    assert known_predictor("tests.predictors.guesses:Guess") == "tests.predictors.guesses:Guess"
    with pytest.raises(InputError, match="needs the true lengths"):
        known_predictor("oracle")
    mine.write_bytes(mine.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"mine\.lw: is not a complete model file"):
        known_predictor("mine.lw")


class AnyOrder(RuleBasedStateMachine):
    """Requests arrive, are predicted and end in any order, interleaved with the steps of the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.guess = Guess()
        self.clock = Clock()
        self.service = PredictionService(lambda: self.guess, max_waiting=4, deadline_s=30, clock=self.clock)
        self.host = Host(self.service)
        worker = self.service._worker
        assert worker is not None
        self.worker = worker
        worker.start = lambda: None  # type: ignore[method-assign]  # no thread: its steps are rules here
        self.count = 0
        self.open: set[str] = set()
        self.asked: set[str] = set()
        self.seen: list[tuple[str, int, bool]] = []
        served = worker._loaded()
        assert isinstance(served, ServedPredictors)
        self.served = served
        part = served._parts[0]
        observe = part.observe

        def seeing(request: PredictionInput, tokens: int, *, censored: bool) -> None:
            self.seen.append((request.text.split()[0], tokens, censored))
            observe(request, tokens, censored=censored)

        part.observe = seeing  # type: ignore[method-assign]
        self.ends: dict[str, tuple[int | None, bool]] = {}

    @rule(bad=st.booleans(), ask=st.booleans(), tokens=st.integers(1, 5000))
    def arrive(self, bad: bool, ask: bool, tokens: int) -> None:
        key = f"r{self.count}"
        self.count += 1
        before = self.service.counts
        history = self.host.arrive(key, f"{key} " + ("bad" if bad else str(tokens)), ask=ask)
        self.open.add(key)
        # The history is finite, and absent only before the first known length.
        assert history is None or 0 < history.mean() <= 1000
        assert (history is None) == all(tokens is None for tokens, _ in self.ends.values())
        if ask and self.service.counts.dropped == before.dropped:
            self.asked.add(key)

    @rule()
    def work(self) -> None:
        self.worker.work(wait=False)

    @rule()
    def deliver(self) -> None:
        self.host.deliver()

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=st.none() | st.integers(0, 5000), censored=st.booleans(), twice=st.booleans())
    def end(self, data: st.DataObject, tokens: int | None, censored: bool, twice: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.open)))
        self.open.remove(key)
        self.host.waiting.discard(key)
        self.service.ended(key, tokens, censored=censored)
        if twice:
            self.service.ended(key, 77)
        self.ends[key] = (None if tokens is None or (censored and tokens == 0) else tokens, censored)

    @precondition(lambda self: self.host.waiting)
    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        self.host.waiting.discard(data.draw(st.sampled_from(sorted(self.host.waiting))))

    @invariant()
    def counts_are_consistent(self) -> None:
        counts = self.service.counts
        assert set(self.host.taken) <= self.asked
        assert counts.asked >= counts.answered + counts.failed + counts.dropped
        assert counts.late <= counts.answered
        # Each answer once, and only one that was predicted, ended and measured.
        assert len({key for key, *_ in self.seen}) == len(self.seen) == counts.observed
        for key, length, censored in self.seen:
            assert self.ends[key] == (length, censored)

    def teardown(self) -> None:
        while self.worker.waiting:
            self.worker.work(wait=False)
        self.deliver()
        self.counts_are_consistent()
        counts = self.service.counts
        assert counts.asked == counts.answered + counts.failed + counts.dropped
        measured = {key for key, (tokens, _) in self.ends.items() if tokens is not None}
        predicted = {text.split()[0] for text in self.guess.predicted}
        assert {key for key, *_ in self.seen} == predicted & measured
        kept = {request.text.split()[0] for _, request in self.served._open.values()}
        assert kept <= self.open, "no prompt is kept longer than its request"


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40)


def test_many_requests_are_each_answered_once() -> None:
    guess = Guess()
    host = Host(PredictionService(lambda: guess, max_waiting=10_000))
    for n in range(2000):
        host.arrive(str(n), f"{n} {1 + n}")
        if n % 7 == 0:
            host.deliver()
        if n % 3 == 0:
            host.service.ended(str(n), 1 + n)
    host.until(lambda: host.service.counts.answered == 2000)
    host.deliver()
    for n in range(2000):
        host.service.ended(str(n), 1 + n)
    host.until(lambda: host.service.counts.observed == 2000)
    for key, prediction in host.taken.items():
        assert math.log(prediction.quantile(0.5)) == pytest.approx(math.log(min(1000, 1 + int(key))), abs=0.5)
    host.service.close()


def test_a_single_prediction_needs_no_admitted_request_and_is_not_counted() -> None:
    service = PredictionService(Guess)
    try:
        found, failed = (service.predict(PredictionInput(text, "m", 1000)) for text in ("about 120", "no number"))
        assert found is not None
        assert found.result(20).quantile(0.5) == pytest.approx(120)
        assert failed is not None
        with pytest.raises(ValueError, match="could not convert"):
            failed.result(20)
        assert service.counts.asked == service.counts.answered == service.counts.failed == 0
    finally:
        service.close()
    assert PredictionService(None).predict(PredictionInput("about 120", "m", 1000)) is None


def test_a_predictor_that_hangs_gives_no_single_predictions(guess: Guess) -> None:
    clock = Clock()
    service = PredictionService(lambda: guess, patience_s=10, clock=clock)
    guess.gate.clear()
    assert service.predict(PredictionInput("about 120", "m", 1000)) is not None
    assert guess.inside.wait(60)
    clock.now = 11.0
    assert service.predict(PredictionInput("about 120", "m", 1000)) is None
    guess.gate.set()
    service.close()


SCOPES = scopes_of("m", [1, 2, 3])


def serve(service: PredictionService, tokens: int, times: int, scopes: Scopes = SCOPES) -> None:
    for _ in range(times):
        service.admit("served", "m", 1000, scopes)
        service.ended("served", tokens)


def test_prefix_memory_corrects_the_history_of_a_known_prefix_only() -> None:
    service = PredictionService(None, memory=PrefixMemory(1 << 16))
    assert service.admit("first", "m", 1000, SCOPES) is None
    for _ in range(20):
        serve(service, 20, 1)
        serve(service, 600, 1, scopes_of("m", [7]))
    known, other = service.admit("a", "m", 1000, SCOPES), service.admit("b", "m", 1000, scopes_of("m", [9]))
    alone = service.admit("c", "m", 1000)
    assert known is not None
    assert other is not None
    assert alone is not None
    assert known.quantile(0.5) == pytest.approx(20, rel=0.3)
    assert other.quantile(0.5) == pytest.approx(alone.quantile(0.5))


def test_prefix_memory_corrects_predictions_of_a_known_prefix(guess: Guess) -> None:
    host = Host(PredictionService(lambda: guess))

    def ask(key: str, block: int) -> float:
        host.waiting.add(key)
        host.service.admit(key, "m", 1000)
        host.service.ask(key, lambda: PredictionInput("about 400", "m", 1000, blocks=[block]))
        host.until(lambda: key in host.taken)
        return host.taken[key].quantile(0.5)

    assert ask("new", 1) == pytest.approx(400)
    for number in range(60):
        ask(f"short {number}", 1)
        host.service.ended(f"short {number}", 40)
        ask(f"right {number}", 50 + number)
        host.service.ended(f"right {number}", 400)
    host.until(lambda: host.service.counts.observed == 120)
    assert ask("short", 1) < 80
    assert ask("unknown", 5) > 150
    host.service.close()


def test_history_and_prefix_memory_survive_a_restart(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "gateway.state")
    service = prediction_service("none", state=file)
    serve(service, 20, 30)
    expected = [service.admit(key, "m", 1000, scopes) for key, scopes in (("a", SCOPES), ("b", None))]
    service.close()
    again = prediction_service("none", state=file)
    assert [again.admit(key, "m", 1000, scopes) for key, scopes in (("a", SCOPES), ("b", None))] == expected
    again.close()


def median_of(service: PredictionService, key: str, text: str) -> float:
    """Return the median that a request gets."""
    host = Host(service)
    host.arrive(key, text)
    host.until(lambda: key in host.taken)
    return host.taken[key].quantile(0.5)


def test_calibration_survives_a_restart(guess: Guess, tmp_path: Path) -> None:
    file = StateFile(tmp_path / "gateway.state")
    first = PredictionService(lambda: guess, state=file, predictor="p")
    for number in range(30):
        median_of(first, str(number), "about 100")
        first.ended(str(number), 400)
    Host(first).until(lambda: first.counts.observed == 30)
    learned = median_of(first, "last", "about 100")
    first.close()
    again = PredictionService(lambda: guess, state=file, predictor="p")
    assert median_of(again, "first", "about 100") == pytest.approx(learned, rel=1e-4)
    assert learned > 150
    again.close()


def predict_and_end(service: PredictionService, key: str, text: str, tokens: int | None, **options: bool) -> None:
    median_of(service, key, text)
    service.ended(key, tokens, **options)


def test_progress_scores_the_model_alone_and_the_predictions_as_they_were_made(guess: Guess, tmp_path: Path) -> None:
    file = StateFile(tmp_path / "gateway.state")
    service = PredictionService(lambda: guess, state=file, predictor="p")
    assert service.progress()[:2] == (0, 0)
    assert math.isnan(service.progress().tau_alone)
    host = Host(service)
    for number in range(40):  # the model says the opposite of what two templates show
        for name, said, tokens in (("long", 100, 800), ("short", 300, 40)):
            key = f"{name} {number}"
            host.waiting.add(key)
            request = PredictionInput(f"about {said}", "m", 1000, template=name)
            service.admit(key, "m", 1000)
            service.ask(key, lambda request=request: request)  # type: ignore[misc]
            host.until(lambda key=key: key in host.taken)  # type: ignore[misc]
            service.ended(key, tokens)
            host.until(lambda: service.counts.observed == service.progress().answers)
    predict_and_end(service, "cut", "about 100", 900, censored=True)
    predict_and_end(service, "unknown", "about 100", None)
    serve(service, 20, 1)
    found = service.progress()
    assert (found.answers, found.recent) == (81, 80), "only what was predicted counts, and what is complete is scored"
    assert found.tau_alone == pytest.approx(-1)
    assert found.tau_learned > 0.5
    service.close()
    again = PredictionService(lambda: guess, state=file, predictor="p")
    assert again.progress() == found
    again.use(OtherGuess(), "another")  # type: ignore[arg-type]
    assert again.progress()[:2] == (0, 0)
    again.close()


def test_the_state_of_another_predictor_waits_for_it(guess: Guess, tmp_path: Path) -> None:
    file = StateFile(tmp_path / "gateway.state")
    new = OtherGuess()
    learned = Learner(new, memory=True)
    for _ in range(30):
        learned.observe(PredictionInput("about 100", "m", 1000), 400)
    file.write(Kept("new", {"learner": learned.state()}))
    service = PredictionService(lambda: guess, state=file, predictor="old")
    assert median_of(service, "a", "about 100") == pytest.approx(100)
    service.use(new, "new")  # type: ignore[arg-type]
    assert median_of(service, "b", "about 100") > 150
    service.close()


def test_a_predictor_that_hangs_keeps_neither_the_host_nor_the_rest_from_being_saved(
    guess: Guess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lengthwise.predictors.prediction_worker._COLLECT_S", 0.01)
    file = StateFile(tmp_path / "gateway.state")
    file.write(Kept("p", {"calibration": b"as it was"}))
    host = Host(PredictionService(lambda: guess, state=file, predictor="p"))
    guess.gate.clear()
    host.arrive("a")
    host.until(guess.inside.is_set)
    serve(host.service, 20, 3)
    host.service.learn()
    assert host.service.saver is not None
    for _ in range(2):
        serve(host.service, 20, 1)
        host.service.saver.save()
    kept = file.read().parts
    assert kept["calibration"] == b"as it was"
    assert json.loads(kept["history"])["pooled"]["seen"] == 4, "the last one waits for the next request"
    guess.gate.set()
    host.service.close()


def predicted(service: PredictionService, tenant: str, scopes: Scopes | None = SCOPES) -> LengthDistribution | None:
    """Return what the history and prefix memory of a tenant predict."""
    found = service.admit("asked", "m", 1000, scopes, tenant)
    service.ended("asked", None)
    return found


def feed(service: PredictionService, tenant: str, tokens: int, times: int = 30) -> None:
    for _ in range(times):
        service.admit("fed", "m", 1000, SCOPES, tenant)
        service.ended("fed", tokens)


def test_tenants_apart_learn_nothing_from_each_other() -> None:
    service = PredictionService(None, memory=PrefixMemory(1 << 16), tenants_apart=True)
    feed(service, "b", 20)
    before = predicted(service, "b"), service.from_history("m", 1000, "b")
    feed(service, "a", 900)
    assert predicted(service, "c") is None, "not even a new one"
    assert (predicted(service, "b"), service.from_history("m", 1000, "b")) == before


def test_tenants_that_are_apart_from_now_on_use_nothing_of_what_was_learned_together() -> None:
    service = PredictionService(None, memory=PrefixMemory(1 << 16))
    feed(service, "a", 900)
    assert predicted(service, "b") is not None
    service.tenants_apart = True
    assert predicted(service, "b") is None
    service.tenants_apart = False
    assert predicted(service, "b") is not None


def test_the_number_of_tenants_that_are_learned_from_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.predictors.service.MAX_TENANTS", 3)
    service = PredictionService(None, tenants_apart=True)
    for tenant in ("a", "b", "c", "a", "d"):
        feed(service, tenant, 20, 1)
    assert [predicted(service, tenant) is not None for tenant in ("d", "a", "c", "b")] == [True, True, True, False]


def test_what_is_learned_of_tenants_survives_a_restart(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "gateway.state")
    service = prediction_service("none", tenants_apart=True, state=file)
    feed(service, "a", 900)
    feed(service, "b", 20)
    before = [predicted(service, tenant) for tenant in ("a", "b", "c")]
    service.close()
    again = prediction_service("none", tenants_apart=True, state=file)
    assert [predicted(again, tenant) for tenant in ("a", "b", "c")] == before
    again.close()
    together = prediction_service("none", state=file)
    assert predicted(together, "a") is None
    together.close()


class Broken(PrefixMemory):
    def predict(self, *_: object, **__: object) -> None:  # type: ignore[override]
        raise RuntimeError("broken")


def test_a_prefix_memory_that_fails_is_dropped_and_the_history_is_used(caplog: pytest.LogCaptureFixture) -> None:
    service = PredictionService(None, memory=Broken(1 << 16))
    serve(service, 20, 1)
    with caplog.at_level(logging.WARNING):
        assert service.admit("a", "m", 1000, SCOPES) is not None
        assert service.admit("b", "m", 1000, SCOPES) is not None
    assert not service.remembers
    assert caplog.text.count("prefix memory failed") == 1


def test_a_reset_forgets_prefix_memory() -> None:
    service = PredictionService(None, memory=PrefixMemory(1 << 16))
    serve(service, 20, 5)
    service.reset()
    assert service.remembers
    assert service.memory_nodes == 0


def test_a_host_refuses_prefix_memory_as_a_predictor() -> None:
    with pytest.raises(InputError, match="is for simulations"):
        known_predictor("memory+fast")


class OtherGuess(Guess):
    """A stand-in for a started process."""

    quick = None
    cpu_s = 0.0
    given_up = False
    learns = False
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_replaced_predictor_answers_its_pending_requests(guess: Guess) -> None:
    service = PredictionService(lambda: guess, predictor="old")
    host, new = Host(service), OtherGuess()
    guess.gate.clear()
    host.arrive("before", "about 20")
    host.until(guess.inside.is_set)
    service.use(new, "new")  # type: ignore[arg-type]
    host.arrive("after", "about 30")
    host.until(lambda: "after" in host.taken)
    assert "before" not in host.taken
    guess.gate.set()
    host.until(lambda: "before" in host.taken)
    assert host.taken["before"].quantile(0.5) == pytest.approx(20, rel=0.01)
    traces = [service.trace(key) for key in ("before", "after")]
    assert [trace and trace.predictor for trace in traces] == ["old", "new"]
    assert (guess.predicted, new.predicted) == (["about 20"], ["about 30"])
    for key in ("before", "after"):
        service.ended(key, 25)
    host.until(lambda: service.counts.answered == 2)
    assert (service.counts.asked, service.counts.failed, service.counts.dropped) == (2, 0, 0)
    assert service.predictor == "new"
    newer = OtherGuess()
    service.use(newer, "newer")  # type: ignore[arg-type]
    host.until(lambda: new.closed)
    assert not newer.closed
    service.close()
    assert newer.closed
