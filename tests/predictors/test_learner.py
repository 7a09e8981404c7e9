"""Learning while serving: `Learner` and its regression on the text."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions, PredictionInput, load_predictor
from lengthwise.predictors import learner_kernel as kernel
from lengthwise.predictors.contract import Description, LengthPredictor, LoadedPredictor, as_logt
from lengthwise.predictors.learner import LearnedPredictor, Learner, describe
from lengthwise.traffic.scores import kendall_tau

TOPICS = ("essay", "poem", "proof", "list", "joke", "letter")
LENGTHS = dict(zip(TOPICS, (900, 200, 1500, 120, 40, 350), strict=True))


class Blind:
    """Predicts 300 tokens for every prompt, whatever it says."""

    def __init__(self, median: float = 300.0, sigma: float = 0.6) -> None:
        self.median, self.sigma, self.calls = median, sigma, 0

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        self.calls += 1
        return LogTPredictions.of([math.log(self.median)] * len(inputs), self.sigma, [each.cap for each in inputs])


class Described(Blind):
    """Also describes prompts: three features, the first of which is what the text states."""

    def describe(self, inputs: Sequence[PredictionInput]) -> tuple[LogTPredictions, list[Description]]:
        features = [np.array([float(each.text), 0.0, 1.0], np.float32) for each in inputs]
        return self.predict(inputs), [Description(np.empty(0, np.int32), each) for each in features]


class Traffic:
    """Prompts about topics whose answers have different lengths."""

    def __init__(self, seed: int = 0, llm: str = "llm", tenant: str | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.llm, self.tenant, self.number = llm, tenant, 0

    def request(self) -> tuple[PredictionInput, int]:
        self.number += 1
        topic = str(self.rng.choice(TOPICS))
        text = f"Write a {topic} about matter number {self.rng.integers(10_000)} of {self.number}"
        tokens = max(1, round(LENGTHS[topic] * math.exp(0.3 * self.rng.standard_t(3.5))))
        return PredictionInput(text, self.llm, tenant=self.tenant), tokens

    def teach(self, learner: Learner, answers: int, times: float = 1.0) -> None:
        for _ in range(answers):
            request, tokens = self.request()
            learner.predict([request])
            learner.observe(request, max(1, round(times * tokens)))

    def judge(self, learner: Learner, times: float = 1.0, requests: int = 400) -> tuple[float, float, float]:
        """Return tau, the geometric mean of median over length, and the coverage of 90 % intervals."""
        asked = [self.request() for _ in range(requests)]
        found = learner.predict([request for request, _ in asked])
        true = times * np.array([tokens for _, tokens in asked])
        inside = (found.quantile(0.05) <= true) & (true <= found.quantile(0.95))
        return kendall_tau(found.mu, true), float(np.exp(np.mean(found.mu - np.log(true)))), float(inside.mean())


def medians(predictor: LengthPredictor, requests: Sequence[PredictionInput]) -> NDArray[np.float64]:
    return as_logt(predictor.predict(requests)).mu


def test_without_observations_predictions_are_the_text_predictors_to_the_bit() -> None:
    fast = load_predictor("fast")
    requests = [PredictionInput(text, "llama-3.1-8b") for text in ("Say only yes.", "", "x" * 9_000, "你好")]
    own, learned = fast.predict(requests), Learner(fast).predict(requests)
    for column in ("mu", "sigma", "cap", "sample_mean", "sample_std"):
        assert np.array_equal(getattr(own, column), getattr(learned, column))


def test_it_learns_from_the_words_of_prompts_what_a_blind_predictor_cannot_know() -> None:
    traffic, learner = Traffic(), Learner(Blind())
    traffic.teach(learner, 300)
    tau, ratio, covered = traffic.judge(learner)
    assert tau > 0.6
    assert ratio == pytest.approx(1.0, abs=0.12)
    assert 0.85 < covered < 0.95


def test_it_learns_from_the_features_that_a_predictor_describes() -> None:
    rng, learner = np.random.default_rng(3), Learner(Described())
    values = rng.standard_normal(400)
    lengths = 300 * np.exp(0.8 * values + 0.3 * rng.standard_normal(400))
    for value, length in zip(values[:300], lengths[:300], strict=True):
        learner.observe(PredictionInput(str(value), "llm"), round(length))
    found = medians(learner, [PredictionInput(str(value), "llm") for value in values[300:]])
    assert kendall_tau(found, lengths[300:]) > 0.6


def test_calibration_alone_shifts_and_ignores_the_text() -> None:
    traffic, learner = Traffic(), Learner(Blind(), learning=False)
    traffic.teach(learner, 300)
    requests = [traffic.request()[0] for _ in range(20)]
    assert np.ptp(medians(learner, requests)) == 0.0
    assert traffic.judge(learner)[2] == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize(("learning", "within"), [(True, 0.15), (False, 0.3)])  # topics differ: a spread of 1.2
def test_an_llm_whose_lengths_double_is_followed_within_200_answers(*, learning: bool, within: float) -> None:
    traffic, learner = Traffic(5), Learner(Blind(sigma=1.0), learning=learning)
    traffic.teach(learner, 600)
    traffic.teach(learner, 200, times=2.0)
    _, ratio, covered = traffic.judge(learner, times=2.0)
    assert ratio == pytest.approx(1.0, abs=within)
    assert 0.82 < covered < 0.97


def test_answers_cut_off_by_a_limit_count_as_at_least_that_long() -> None:
    traffic, censored, naive = Traffic(7), Learner(Blind()), Learner(Blind())
    for _ in range(400):
        request, tokens = traffic.request()
        limit = int(traffic.rng.choice([150, 4_000]))
        censored.observe(request, min(tokens, limit), censored=tokens >= limit)
        naive.observe(request, min(tokens, limit))
    right, wrong = traffic.judge(censored)[1], traffic.judge(naive)[1]
    assert abs(math.log(right)) < abs(math.log(wrong)) / 2
    assert right == pytest.approx(1.0, abs=0.2)


def test_a_new_llm_starts_from_what_the_first_answers_of_others_taught() -> None:
    learner = Learner(Blind())
    Traffic(1, "one").teach(learner, 100)
    Traffic(2, "two").teach(learner, 100, times=1.5)
    new = Traffic(3, "three")
    assert new.judge(learner)[0] > 0.5
    new.teach(learner, 1)
    assert new.judge(learner)[0] > 0.5


def test_one_tenant_leaves_the_predictions_of_another_unchanged_to_the_bit() -> None:
    ours = Traffic(1, tenant="ours")
    requests = [ours.request()[0] for _ in range(50)]
    found = []
    for others in (0, 400):
        learner = Learner(Blind(), memory=True, tenants_apart=True)
        Traffic(2, tenant="ours").teach(learner, 150)
        for number in range(others):  # absurd prompts, short answers, alternating lengths
            absurd = PredictionInput("\x00 " * (number % 7), "llm", tenant="theirs", blocks=[number])
            learner.observe(absurd, 1 if number % 2 else 100_000)
        Traffic(3, tenant="ours").teach(learner, 20)
        predictions = learner.predict(requests)
        found.append(np.stack([predictions.mu, predictions.sigma]))
    assert np.array_equal(found[0], found[1])


def test_tenants_share_unless_they_are_apart() -> None:
    request = PredictionInput("Write a poem", "llm", tenant="two")
    learner = Learner(Blind())
    before = medians(learner, [request])[0]
    Traffic(1, tenant="one").teach(learner, 100, times=5.0)
    assert medians(learner, [request])[0] > before + 0.5


POISON: dict[str, Callable[[int], tuple[str, int]]] = {
    "absurd prompts with answers of one token": lambda n: ("qzx " * (n % 50), 1),
    "alternating lengths": lambda n: ("Write a poem", 1 if n % 2 else 1_000_000),
    "empty prompts": lambda _: ("", 1),
    "prompts of a megabyte": lambda n: ("a" * (1 << 20) if n % 500 == 0 else "a" * 300, 1),
}


@pytest.mark.parametrize("kind", list(POISON))
def test_poisoned_traffic_has_bounded_influence_and_is_forgotten(kind: str) -> None:
    traffic, learner = Traffic(1), Learner(Blind())
    traffic.teach(learner, 300)
    for number in range(10_000):
        text, tokens = POISON[kind](number)
        learner.observe(PredictionInput(text, "llm"), tokens)
    requests = [traffic.request()[0] for _ in range(50)]
    found = learner.predict(requests)
    assert np.isfinite(found.mu).all()
    assert np.isfinite(found.sigma).all()
    assert (found.sigma > 0).all()
    assert (found.quantile(0.5) >= 1).all()
    traffic.teach(learner, 300)
    tau, ratio, _ = traffic.judge(learner)
    assert tau > 0.5
    assert ratio == pytest.approx(1.0, abs=0.3)


def test_honest_prompts_among_poisoned_ones_keep_their_order() -> None:
    traffic, learner = Traffic(1), Learner(Blind())
    for number in range(1_000):
        traffic.teach(learner, 1)
        learner.observe(PredictionInput(f"zq {number} xv", "llm"), 1)
    tau, ratio, _ = traffic.judge(learner)
    assert tau > 0.5
    assert ratio == pytest.approx(1.0, abs=0.35)


@settings(max_examples=30, deadline=None)
@given(
    answers=st.lists(
        st.tuples(
            st.text(max_size=60), st.one_of(st.integers(-5, 10**9), st.just(math.nan), st.just(math.inf)), st.booleans()
        ),
        max_size=40,
    )
)
def test_predictions_stay_finite_whatever_is_observed(answers: list[tuple[str, float, bool]]) -> None:
    learner = Learner(Blind())
    for text, tokens, censored in answers:
        learner.observe(PredictionInput(text, "llm"), tokens, censored=censored)
        found = learner.predict([PredictionInput(text, "llm"), PredictionInput("Write a poem", "other")])
        assert np.isfinite(found.mu).all()
        assert ((found.sigma > 0) & np.isfinite(found.sigma)).all()


def test_a_prediction_that_is_not_a_number_is_returned_and_teaches_nothing() -> None:
    class Broken(Blind):
        def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
            found = super().predict(inputs)
            found.mu[[each.text == "broken" for each in inputs]] = math.nan
            return found

    learner, broken, sound = Learner(Broken()), PredictionInput("broken", "llm"), PredictionInput("sound", "llm")
    before = medians(learner, [sound])
    for _ in range(20):
        assert np.isnan(medians(learner, [broken])).all()
        learner.observe(broken, 5)
    assert np.array_equal(medians(learner, [sound]), before)
    assert learner.answers == 0


def test_features_that_are_not_numbers_count_as_none() -> None:
    learner = Learner(Described())
    for _ in range(30):
        learner.observe(PredictionInput("nan", "llm"), 100)
    assert np.isfinite(medians(learner, [PredictionInput("nan", "llm"), PredictionInput("1.0", "llm")])).all()


@pytest.mark.parametrize("memory", [True, False])
def test_a_restored_learner_goes_on_as_the_saved_one_to_the_bit(*, memory: bool) -> None:
    traffic, first = Traffic(1), Learner(Blind(), memory=memory)
    traffic.teach(first, 130)
    Traffic(2, "other").teach(first, 20)
    state = first.state()
    second = Learner(Blind(), memory=memory)
    second.restore(state)
    assert second.answers == first.answers == 150
    for learner in (first, second):
        Traffic(3).teach(learner, 30)
    requests = [traffic.request()[0] for _ in range(30)]
    assert np.array_equal(medians(first, requests), medians(second, requests))


def test_a_state_of_another_model_is_refused() -> None:
    learner = Learner(Blind())
    Traffic().teach(learner, 20)
    with pytest.raises(InputError, match=r"s\.npz: was learned on another model"):
        Learner(load_predictor("fast")).restore(learner.state(), "s.npz")


def test_a_learner_begins_with_what_a_model_file_has_learned() -> None:
    traffic, first = Traffic(), Learner(Blind())
    traffic.teach(first, 300)
    Traffic(1, "left out").teach(first, 50)
    requests, others = [traffic.request()[0] for _ in range(20)], [Traffic(1, "left out").request()[0]]
    part = first.learned({"llm"})
    before = medians(first, requests)
    learned = LearnedPredictor(cast("LoadedPredictor", Blind()), part, {})
    second = Learner(learned, tenants_apart=True)
    for found in (learned, second):
        assert np.array_equal(medians(found, requests), before)
        assert np.array_equal(medians(found, others), medians(Blind(), others)), "of other LLMs nothing is kept"
    assert np.array_equal(second.alone(requests).mu, before)
    one, two = (PredictionInput("topic0", "llm", tenant=name) for name in ("one", "two"))
    start = medians(second, [two])
    for _ in range(50):
        second.observe(one, 3)
    assert medians(second, [one]) < start - 1.0
    assert medians(second, [two]) == start
    with pytest.raises(InputError, match="was learned on another model"):
        Learner(Blind()).restore(second.state())
    with pytest.raises(InputError, match="learned part: is not a saved state"):
        LearnedPredictor(cast("LoadedPredictor", Blind()), b"damaged", {})


def test_damaged_states_are_refused_and_change_nothing() -> None:
    traffic, learner = Traffic(), Learner(Blind())
    traffic.teach(learner, 70)
    state, requests = learner.state(), [traffic.request()[0] for _ in range(5)]
    before = medians(learner, requests)
    rng = np.random.default_rng(0)
    accepted = 0
    for number in range(60):
        damaged = bytearray(state)
        if number % 2:
            del damaged[int(rng.integers(len(state))) :]
        else:
            at = int(rng.integers(len(state) - 8))
            damaged[at : at + 8] = rng.bytes(8)
        with contextlib.suppress(InputError):  # a change of a few bits may be another sound state
            Learner(Blind()).restore(bytes(damaged), "s.npz")
            accepted += 1
    assert accepted < 10
    with pytest.raises(InputError, match="is not a saved state"):
        learner.restore(b"")
    assert np.array_equal(medians(learner, requests), before)


def test_learners_stay_within_their_memory_and_the_least_recently_used_goes() -> None:
    one = Learner(Blind())
    Traffic(1, "llm-0").teach(one, 2)
    learner = Learner(Blind(), max_bytes=4 * one.size)
    for number in range(20):
        Traffic(number, f"llm-{number}").teach(learner, 3)
        assert learner.size <= 4 * one.size
    last, first = (Traffic(50, name).judge(learner)[1] for name in ("llm-19", "llm-0"))
    assert math.isfinite(last + first)


def test_an_answer_is_learned_without_calling_the_predictor_again() -> None:
    blind = Blind()
    learner, (request, tokens) = Learner(blind), Traffic().request()
    learner.predict([request])
    learner.observe(request, tokens)
    assert blind.calls == 1


def test_names_lead_to_learners() -> None:
    found = load_predictor("fast+learn")
    assert isinstance(found, Learner)
    assert found.llms == load_predictor("fast").llms
    assert found.predict(["Say yes."], ["llama-3.1-8b"]).mu.shape == (1,)
    with pytest.raises(InputError, match="nothing to learn over 'oracle'"):
        load_predictor("oracle+learn")


def test_a_prompt_has_the_same_rows_wherever_it_is_folded() -> None:
    terms, features = np.arange(-500, 500, dtype=np.int32), np.array([9.0, -1.0], np.float32)
    rows, scaled = np.zeros(kernel.MAX_TERMS, np.uint16), np.zeros(2, np.float32)
    count = kernel.fold(terms, features, rows, scaled)
    assert kernel.TERMS * 0.7 < count <= kernel.MAX_TERMS
    assert rows.max() < kernel.ROWS
    assert scaled == pytest.approx(np.array([4.0, -1.0]) / math.sqrt(2))


def test_a_predictor_without_descriptions_is_described_by_its_words() -> None:
    _, (one, two, other) = describe(
        Blind(), [PredictionInput(text, "llm") for text in ("a long poem", "A  LONG poem!", "proof")]
    )
    assert set(one.terms.tolist()) <= set(two.terms.tolist())
    assert not set(other.terms.tolist()) & set(one.terms.tolist())
    assert not len(one.features)
