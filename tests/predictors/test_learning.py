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
from lengthwise.predictors.prediction_worker import StateFile
from lengthwise.predictors.service import PredictionService, known_predictor, prediction_service

LEARNER = "tests.conformance.outside_predictor:LastLength"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the predictor's process import the tests."""
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path.cwd() / 'src'}")


@pytest.fixture
def memory(tmp_path: Path) -> str:
    return str(tmp_path / "memory.npz")


class Server:
    """A host that predicts one request after another and reports its length."""

    def __init__(self, service: PredictionService) -> None:
        self.service = service
        self._number = 0

    def predicted(self, prompt: str) -> float:
        """Return the median of the predictor itself, before calibration and memory."""
        key = self._ask(prompt)
        trace = self.service.trace(key)
        self.service.ended(key, None)
        assert trace is not None
        assert trace.text is not None
        return trace.text.quantile(0.5)

    def serve(self, prompt: str, tokens: int, *, censored: bool = False) -> None:
        self.service.ended(self._ask(prompt), tokens, censored=censored)

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not done():
            assert time.monotonic() < end, "the condition did not become true in time"
            time.sleep(0.001)

    def _ask(self, prompt: str) -> str:
        self._number += 1
        key, taken = str(self._number), set[str]()

        def take(name: str, _: LengthDistribution) -> bool:
            taken.add(name)
            return True

        def delivered() -> bool:
            self.service.deliver(take)
            return key in taken

        self.service.admit(key, "m", 1000)
        assert self.service.ask(key, lambda: PredictionInput(prompt, "m", 1000))
        self.until(delivered)
        return key


@pytest.fixture
def server(memory: str) -> Iterator[Server]:
    made = Server(prediction_service(known_predictor(LEARNER), memory=memory))
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


def test_its_state_is_kept_beside_prefix_memory(server: Server, memory: str) -> None:
    server.serve("a", 700)
    server.service.close()
    assert {each.name for each in Path(memory).parent.iterdir()} == {"memory.npz", "memory.predictor"}
    again = Server(prediction_service(LEARNER, memory=memory))
    assert again.predicted("a") == pytest.approx(700)
    again.service.close()


def test_the_state_of_another_predictor_is_not_restored(
    server: Server, memory: str, caplog: pytest.LogCaptureFixture
) -> None:
    StateFile(Path(memory).with_suffix(".predictor"), "another:One").write(b'{"a": 700}')
    with caplog.at_level(logging.WARNING):
        assert server.predicted("a") == pytest.approx(100)
    assert "the state of another predictor" in caplog.text


def test_a_state_that_it_cannot_restore_is_logged_and_it_starts_afresh(
    server: Server, memory: str, caplog: pytest.LogCaptureFixture
) -> None:
    StateFile(Path(memory).with_suffix(".predictor"), LEARNER).write(b"{")
    with caplog.at_level(logging.WARNING):
        assert server.predicted("a") == pytest.approx(100)
    assert "is not used" in caplog.text


def test_a_reset_makes_it_forget(server: Server) -> None:
    server.serve("a", 700)
    server.until(lambda: server.service.counts.learned == 1)
    server.service.reset()
    assert server.predicted("a") == pytest.approx(100)


def test_without_a_file_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Server(prediction_service(LEARNER, memory="on"))
    made.serve("a", 700)
    made.until(lambda: made.service.counts.learned == 1)
    made.service.close()
    assert list(tmp_path.iterdir()) == []


def test_a_predictor_that_observes_but_has_no_state_is_refused() -> None:
    with pytest.raises(InputError, match="has no state and no restore; one that learns has observe, state, restore"):
        known_predictor("tests.conformance.outside_predictor:OnlyObserves")


def test_the_packaged_predictor_does_not_learn_by_itself(memory: str) -> None:
    made = Server(prediction_service("fast", memory=memory))
    made.serve("a", 700)
    made.until(lambda: made.service.counts.observed == 1)
    made.service.close()
    assert made.service.counts.learned == 0
    assert [each.name for each in Path(memory).parent.iterdir()] == ["memory.npz"]
