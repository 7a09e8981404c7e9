"""A predictor of another package that learns: a server lets it observe every predicted answer, and keeps its state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.service import PredictionService, known_predictor, prediction_service
from lengthwise.predictors.state_file import Kept, StateFile

LEARNER = "tests.conformance.outside_predictor:LastLength"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the predictor's process import the tests."""
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path.cwd() / 'src'}")


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "gateway.state")


class Server:
    """A host that predicts one request after another and reports its length."""

    def __init__(self, service: PredictionService) -> None:
        self.service = service
        self._number = 0

    def predicted(self, prompt: str, tenant: str | None = None) -> float:
        """Return the median of the predictor itself, before calibration and memory."""
        key = self._ask(prompt, tenant)
        trace = self.service.trace(key)
        self.service.ended(key, None)
        assert trace is not None
        assert trace.text is not None
        return trace.text.quantile(0.5)

    def serve(self, prompt: str, tokens: int, *, censored: bool = False, tenant: str | None = None) -> None:
        self.service.ended(self._ask(prompt, tenant), tokens, censored=censored)

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not done():
            assert time.monotonic() < end, "the condition did not become true in time"
            time.sleep(0.001)

    def _ask(self, prompt: str, tenant: str | None = None) -> str:
        self._number += 1
        key, taken = str(self._number), set[str]()

        def take(name: str, _: LengthDistribution) -> bool:
            taken.add(name)
            return True

        def delivered() -> bool:
            self.service.deliver(take)
            return key in taken

        self.service.admit(key, "m", 1000)
        assert self.service.ask(key, lambda: PredictionInput(prompt, "m", 1000, tenant=tenant))
        self.until(delivered)
        return key


@pytest.fixture
def server(file: StateFile) -> Iterator[Server]:
    made = Server(prediction_service(known_predictor(LEARNER), state=file))
    yield made
    made.service.close()


def test_it_observes_the_length_of_every_answer_that_it_predicted(server: Server) -> None:
    assert server.predicted("a") == pytest.approx(100)
    server.serve("a", 700)
    server.serve("b", 5, censored=True)
    server.until(lambda: server.service.counts.learned == 2)
    assert server.predicted("a") == pytest.approx(700)
    assert server.predicted("b") == pytest.approx(100)


def test_a_length_that_it_cannot_observe_is_counted_and_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            server.serve("a", 13)
        server.serve("a", 50)
        server.until(lambda: server.service.counts.learned == 1)
    counts = server.service.counts
    assert (counts.unlearned, counts.failed, counts.observed) == (3, 0, 4)
    assert caplog.text.count("an unlucky length") == 1
    assert server.predicted("a") == pytest.approx(50)


def test_its_state_survives_a_restart(server: Server, file: StateFile) -> None:
    server.serve("a", 700)
    server.service.close()
    again = Server(prediction_service(LEARNER, state=file))
    assert again.predicted("a") == pytest.approx(700)
    again.service.close()


def test_the_state_of_another_predictor_is_not_restored(file: StateFile, caplog: pytest.LogCaptureFixture) -> None:
    file.write(Kept("another:One", {"predictor": b'{"a": 700}'}))
    with caplog.at_level(logging.WARNING):
        server = Server(prediction_service(LEARNER, state=file))
        assert server.predicted("a") == pytest.approx(100)
    server.service.close()
    assert caplog.text.count(f"{file.path} was learned with another:One: {LEARNER} learns anew") == 1


def test_a_state_that_it_cannot_restore_is_logged_and_it_starts_afresh(
    file: StateFile, caplog: pytest.LogCaptureFixture
) -> None:
    file.write(Kept(LEARNER, {"predictor": b"{"}))
    with caplog.at_level(logging.WARNING):
        server = Server(prediction_service(LEARNER, state=file))
        assert server.predicted("a") == pytest.approx(100)
    server.service.close()
    assert caplog.text.count("not used") == 1
    assert "what was learned is not used, and is learned anew: predictor: JSONDecodeError" in caplog.text


def test_a_process_that_dies_continues_from_what_was_saved(server: Server) -> None:
    server.serve("a", 700)
    saver, process = server.service.saver, server.service._process
    assert saver is not None
    assert process is not None
    saver.save()
    assert process._process is not None
    process._process.kill()
    key = "lost"
    server.service.admit(key, "m", 1000)
    server.service.ask(key, lambda: PredictionInput("a", "m", 1000))
    server.until(lambda: server.service.counts.failed == 1)
    assert server.predicted("a") == pytest.approx(700)


def test_a_reset_makes_it_forget(server: Server) -> None:
    server.serve("a", 700)
    server.until(lambda: server.service.counts.learned == 1)
    server.service.reset()
    assert server.predicted("a") == pytest.approx(100)


def test_there_is_one_of_it_for_each_tenant_where_they_are_apart(file: StateFile) -> None:
    first = Server(prediction_service(LEARNER, tenants_apart=True, state=file))
    first.serve("x", 700, tenant="a")
    first.serve("x", 20, tenant="b")
    first.until(lambda: first.service.counts.learned == 2)
    assert [first.predicted("x", tenant) for tenant in ("a", "b", "c", None)] == pytest.approx([700, 20, 100, 100])
    first.service.close()
    again = Server(prediction_service(LEARNER, tenants_apart=True, state=file))
    assert [again.predicted("x", tenant) for tenant in ("a", "b", "c", None)] == pytest.approx([700, 20, 100, 100])
    again.service.tenants_apart = False
    again.until(lambda: again.predicted("x", "a") == pytest.approx(100))
    again.service.close()


def test_one_that_keeps_tenants_apart_itself_is_told_to_and_made_once() -> None:
    server = Server(prediction_service(f"{LEARNER}ByTenant", tenants_apart=True))
    server.serve("x", 700, tenant="a")
    server.until(lambda: server.service.counts.learned == 1)
    assert [server.predicted("x", tenant) for tenant in ("a", "b")] == pytest.approx([700, 100])
    server.service.reset()
    server.serve("x", 700, tenant="a")
    server.until(lambda: server.service.counts.learned == 2)
    assert [server.predicted("x", tenant) for tenant in ("a", "b")] == pytest.approx([700, 100])
    server.service.tenants_apart = False
    server.serve("x", 300, tenant="a")
    server.until(lambda: server.service.counts.learned == 3)
    assert server.predicted("x", "b") == pytest.approx(300)
    server.service.close()


def test_without_a_file_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Server(prediction_service(LEARNER))
    made.serve("a", 700)
    made.until(lambda: made.service.counts.learned == 1)
    made.service.close()
    assert list(tmp_path.iterdir()) == []


def test_a_predictor_that_observes_but_has_no_state_is_refused() -> None:
    with pytest.raises(InputError, match="has no state and no restore; one that learns has observe, state, restore"):
        known_predictor("tests.conformance.outside_predictor:OnlyObserves")


def test_without_learning_nothing_is_observed_and_predictions_are_the_models(file: StateFile) -> None:
    fast, made = Server(prediction_service("fast")), Server(prediction_service("fast", learning=False, state=file))
    before = made.predicted("a")
    for server in (fast, made):
        for _ in range(5):
            server.serve("a", 900)
    fast.until(lambda: fast.service.counts.observed == 5)
    assert made.predicted("a") == before == fast.predicted("a"), "the trace is that of the model alone"
    assert made.service.from_history("m", 1000) is None
    assert fast.service.from_history("m", 1000) is not None
    made.service.close()
    fast.service.close()
    assert (made.service.counts.observed, made.service.counts.learned) == (0, 0)
    assert not file.path.exists()
