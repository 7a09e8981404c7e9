"""Hidden states on a step's output, when a probe reads them, and that a probe that raises stops no step."""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import After, Histogram, LengthDistribution, LogT, Point
from lengthwise.predictors.probe import Probe, write_probe
from lengthwise.vllm.refine import (
    Due,
    Refiner,
    State,
    StepStates,
    Wanted,
    attach,
    attached,
    check_fit,
    generated_by,
    probe_prior,
)
from tests.predictors.test_probe import PREDICTION, made_probe

CAP = 1024


def state(value: float = 0.0, entropy: float | None = None) -> State:
    return State(0, {3: np.full(8, value, np.float32)}, entropy)


def read(
    refiner: Refiner, key: str, generated: int, of: State, prediction: LengthDistribution | None, cap: int
) -> LengthDistribution | None:
    """Read the only state of a step."""
    return refiner.read([Due(key, generated, of, prediction, cap)]).get(key)


def test_a_reading_becomes_a_prediction_about_the_whole_answer() -> None:
    probe = made_probe()
    refiner, reading = Refiner(probe), probe.follow(PREDICTION, CAP)
    for generated in (0, 16, 32):
        assert refiner.due("a", generated)
        prediction = read(refiner, "a", generated, state(generated / 16), PREDICTION, CAP)
        assert isinstance(prediction, After)
        assert prediction == After(reading.read(np.full(8, generated / 16), generated), generated)
        assert prediction.cap == CAP
        assert not refiner.due("a", generated + 15)
    counts = refiner.counts
    assert (counts.requests, counts.readings, counts.failed) == (1, 3, 0)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=40))
def test_a_position_is_read_at_most_once(positions: list[int]) -> None:
    """In any order: a preempted request is recomputed in chunks, and states may be a step late."""
    refiner, done = Refiner(made_probe()), []
    for generated in positions:
        if refiner.due("a", generated):
            assert read(refiner, "a", generated, state(), PREDICTION, CAP) is not None
            done.append(generated)
    assert all(later - earlier >= 16 for earlier, later in pairwise(done))


PROMPTS: Final = (PREDICTION, None, LogT(3.0, 0.4, CAP), Point(100, 500), Histogram((0, 50, 300), (0.4, 0.6)))


@given(st.lists(st.dictionaries(st.integers(0, len(PROMPTS) - 1), st.integers(0, 400), min_size=1), max_size=8))
def test_requests_of_one_step_are_read_as_each_would_be_alone(steps: list[dict[int, int]]) -> None:
    probe = made_probe()
    together, alone = Refiner(probe), [Refiner(probe) for _ in PROMPTS]
    for step in steps:
        due = [
            Due(str(who), age, state(who - age / 100), PROMPTS[who], CAP)
            for who, age in step.items()
            if together.due(str(who), age)
        ]
        found = together.read(due) if due else {}
        assert found.keys() == {each.key for each in due}
        for each in due:
            expected = alone[int(each.key)].read([each])[each.key]
            assert found[each.key].mean() == pytest.approx(expected.mean(), rel=1e-5)
            assert found[each.key].quantile(0.9) == pytest.approx(expected.quantile(0.9), rel=1e-5)
    assert together.counts.readings == sum(each.counts.readings for each in alone)
    assert together.counts.requests == sum(each.counts.requests for each in alone)


def test_an_invalid_state_harms_no_other_request_of_the_step() -> None:
    refiner, other = Refiner(made_probe()), Refiner(made_probe())
    for generated, bad in ((0, state()), (16, state(np.nan)), (32, state())):
        due = [Due("a", generated, state(1.0), PREDICTION, CAP), Due("b", generated, bad, PREDICTION, CAP)]
        found = refiner.read([each for each in due if refiner.due(each.key, generated)])
        assert found["a"].mean() == pytest.approx(other.read(due[:1])["a"].mean(), rel=1e-5)
    assert not refiner.due("b", 48), "it is no longer read"
    counts = refiner.counts
    assert (counts.requests, counts.readings, counts.failed) == (2, 4, 1)


def test_requests_are_tracked_separately_and_removed_when_they_finish() -> None:
    refiner = Refiner(made_probe())
    read(refiner, "a", 0, state(1.0), PREDICTION, CAP)
    assert refiner.due("b", 0)
    other = read(refiner, "b", 0, state(-1.0), None, 64)
    assert other is not None
    assert other.cap == 64
    assert refiner.ended("a", None) == PREDICTION
    assert refiner.ended("a", Point(7)) == Point(7), "it is removed"
    assert refiner.ended("b", Point(7)) is None, "it had no prediction"
    assert refiner.due("a", 0), "a name may be reused"


def test_a_late_prediction_counts_from_the_next_reading_on() -> None:
    probe, late = made_probe(), LogT(3.0, 0.4, CAP)
    refiner, reading = Refiner(probe), probe.follow(PREDICTION, CAP)
    assert not refiner.update_prediction("a", late), "not read yet: the host uses the prediction itself"
    first = read(refiner, "a", 0, state(), PREDICTION, CAP)
    assert refiner.update_prediction("a", late)
    assert first == After(reading.read(np.zeros(8), 0), 0)
    reading.set_prompt_prediction(late)
    assert read(refiner, "a", 16, state(), PREDICTION, CAP) == After(reading.read(np.zeros(8), 16), 16)
    assert refiner.ended("a", None) == late


class Broken(Probe):
    def probabilities(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("broken")


def broken() -> Probe:
    probe = made_probe()
    return Broken(probe.layer, probe.bins, probe.network, smoothing=probe.smoothing)


def test_a_probe_that_raises_is_counted_logged_once_and_not_called_again_for_the_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refiner = Refiner(broken())
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b"):
            assert read(refiner, name, 0, state(), PREDICTION, CAP) is None
            assert not refiner.due(name, 16)
    assert refiner.counts.failed == 2
    assert refiner.counts.requests == refiner.counts.readings == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    late = LogT(3.0, 0.4, CAP)
    assert not refiner.update_prediction("a", late), "its prediction is that of its prompt"
    assert refiner.ended("a", None) == late


@pytest.mark.parametrize("bad", [state(np.nan), State(0, {}, None), State(0, {3: np.zeros(5, np.float32)}, None)])
def test_an_invalid_state_changes_nothing(bad: State) -> None:
    refiner = Refiner(made_probe())
    assert read(refiner, "a", 0, bad, PREDICTION, CAP) is None
    assert refiner.counts.failed == 1


def test_a_probe_with_entropy_inputs_fails_without_the_entropy() -> None:
    probe = made_probe(("prompt", "entropy"), features=6)
    assert read(Refiner(probe), "a", 0, state(), PREDICTION, CAP) is None
    low, high = (read(Refiner(probe), "a", 0, state(entropy=nats), PREDICTION, CAP) for nats in (0.1, 6.0))
    assert low is not None
    assert high is not None
    assert low.mean() != high.mean()


def test_the_probes_prior_gives_a_declared_number_a_spread() -> None:
    assert probe_prior(Point(100, 500), 500) == LogT(np.log(100.0), 0.5, 500)
    assert probe_prior(PREDICTION, CAP) is PREDICTION
    assert probe_prior(None, 77).cap == 77


@pytest.mark.parametrize("llm", ["me/tiny", "/models/tiny/", "Tiny"])
def test_the_probes_llm_is_recognised_by_name_in_any_folder(llm: str) -> None:
    check_fit(made_probe(), [llm], hidden_size=8, layers=3)
    check_fit(made_probe(), ["/models/x", llm], hidden_size=None, layers=None)


@pytest.mark.parametrize(
    ("llm", "hidden_size", "layers", "message"),
    [
        ("other", 8, 3, "the probe is for tiny, and the engine serves other"),
        ("tiny", 16, 3, "reads 8 numbers a state, and the LLM's have 16"),
        ("tiny", 8, 2, "reads layer 3, and the LLM has 2"),
    ],
)
def test_a_probe_of_another_llm_is_refused(llm: str, hidden_size: int, layers: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_fit(made_probe(), [llm], hidden_size=hidden_size, layers=layers)


def test_a_probe_without_the_name_of_its_llm_is_refused() -> None:
    with pytest.raises(InputError, match="an LLM without a name"):
        check_fit(replace(made_probe(), llm=""), [], hidden_size=None, layers=None)


@dataclass
class Output:
    """Like vLLM's ModelRunnerOutput, a plain dataclass."""

    req_ids: list[str]


STATES = StepStates(("a", "b"), (7, 30), {20: np.arange(8, dtype=np.float32).reshape(2, 4)})


def test_states_attached_to_an_output_survive_pickling() -> None:
    output = Output(["a", "b"])
    assert attached(output) is None
    attach(output, STATES)
    found = attached(pickle.loads(pickle.dumps(output)))  # noqa: S301  (pickled here)
    assert found is not None
    rows = {name: (state.tokens, state.layers[20].tolist(), state.entropy) for name, state in found}
    assert rows == {"a": (7, [0.0, 1.0, 2.0, 3.0], None), "b": (30, [4.0, 5.0, 6.0, 7.0], None)}


def test_each_state_has_the_entropy_of_its_row() -> None:
    states = StepStates(STATES.requests, STATES.tokens, STATES.layers, (0.5, 2.5))
    assert {name: state.entropy for name, state in states} == {"a": 0.5, "b": 2.5}


def test_the_worker_copies_the_layers_and_tokens_that_the_probe_reads(tmp_path: Path) -> None:
    plain, entropic = tmp_path / "plain.lw", tmp_path / "entropic.lw"
    write_probe(plain, made_probe())
    write_probe(entropic, made_probe(("prompt", "entropy"), features=6))
    assert Wanted.of({}) == Wanted(())
    assert Wanted.of({"layers": [9, 4], "entropy": True}) == Wanted((4, 9), entropy=True)
    assert Wanted.of({"probe": str(plain)}) == Wanted((3,), every=16)
    assert Wanted.of({"probe": str(entropic)}) == Wanted((3,), every=16, entropy=True)
    assert Wanted.of({"probe": str(plain), "layers": [9]}) == Wanted((3, 9)), (
        "explicit layers are copied at every token"
    )


def test_a_state_during_prefill_covers_no_token_of_the_answer() -> None:
    assert generated_by(9, 10) is None
    assert generated_by(10, 10) == 0
    assert generated_by(13, 10) == 3
