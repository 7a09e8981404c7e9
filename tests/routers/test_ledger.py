from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lengthwise.lengths import Histogram, LengthDistribution, LogT, Point
from lengthwise.policies import Job
from lengthwise.policies.residual import expected_remaining
from lengthwise.routers import EngineInfo, Scraped, Speed
from lengthwise.routers import ledger as columns
from lengthwise.routers.ledger import SILENCE_S, Ledger, log_t_moments

NO_BLOCKS = np.zeros(0, np.uint64)
STEADY = Speed(prefill_token_s=0.001, step_s=0.1, sequence_s=0.0, kv_token_s=0.0, prefill_pair_s=0.0)


def ledger(*, seqs: int = 4, engines: int = 1) -> Ledger:
    made = Ledger()
    for number in range(engines):
        made.add(number, EngineInfo(number, STEADY, max_num_seqs=seqs))
    return made


def job(name: str, tokens: int = 100, prompt: int = 1000, **more: object) -> Job:
    return Job(name, 0.0, prompt, prediction=Point(tokens), **more)  # type: ignore[arg-type]


def remaining_tokens(arrays: Ledger, number: int = 0) -> float:
    """Return the tokens left to decode, from the ledger's sums."""
    row = arrays.loads[number]
    return float(row[columns.ENDS] - row[columns.RUNNING] * row[columns.CLOCK] + row[columns.WAITING_TOKENS])


def outlived(prediction: LengthDistribution, age: int) -> float:
    """Return the tokens left of an answer that has had `age` tokens by the clock."""
    arrays = ledger()
    arrays.sent(Job("a", 0.0, 1, prediction=prediction), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.sent(job("b", tokens=1, prompt=1), 0, 0.001 + 0.1 * age, 0.0, NO_BLOCKS)  # 10 tokens per second
    return remaining_tokens(arrays) - 1


@given(st.floats(2, 8), st.floats(0.1, 2.0), st.floats(1, 10), st.integers(16, 8192))
def test_an_answer_that_outlives_its_prediction_has_the_remaining_length_of_the_policies(
    mu: float, sigma: float, times: float, cap: int
) -> None:
    prediction = LogT(mu, sigma, cap)
    age = 1 + int(times * prediction.mean())
    assume(age < cap and prediction.survival(age) > 1e-7)  # close to OUTLIVED_BELOW, rounding decides which applies
    expected = max(1.0, float(expected_remaining(Job("a", 0.0, 1, prediction=prediction, generated=age))))
    assert outlived(prediction, age) == pytest.approx(expected, rel=0.035, abs=0.5)


@given(st.floats(-2, 13), st.floats(0.02, 4.0), st.integers(1, 200_000))
def test_the_compiled_mean_and_cvar_are_those_of_the_distribution(mu: float, sigma: float, cap: int) -> None:
    assert log_t_moments(mu, sigma, float(cap)) == pytest.approx(LogT(mu, sigma, cap).mean_and_cvar(), rel=1e-7)


@pytest.mark.parametrize("prediction", [LogT(5.0, 0.8, 500), LogT(5.0, 5.0, 500), LogT(5.0, 0.8, 500, 2.0), Point(90)])
def test_the_ledgers_moments_are_those_of_the_job_for_any_prediction(prediction: LogT | Point) -> None:
    computed, expected = (Job("a", 0.0, prediction=prediction, max_tokens=400) for _ in range(2))
    assert computed.compute_moments(log_t_moments) == pytest.approx((expected.expected, expected.tail))
    assert (computed.expected, computed.tail) == computed.compute_moments(log_t_moments)


@pytest.mark.parametrize("age", [350, 500, 1000])
def test_the_ledgers_remaining_length_of_other_families_is_that_of_the_distribution(age: int) -> None:
    edges = np.append(0.0, np.geomspace(1.0, 8192.0, 200))
    known = LogT(5.0, 0.8, 8192)
    mass = -np.diff([known.survival(edge) for edge in edges])
    prediction = Histogram(edges, mass / mass.sum())
    assert outlived(prediction, age) == pytest.approx(prediction.remaining(age).mean(), rel=0.05)


def test_a_certain_length_that_the_clock_says_is_outlived_is_extended_by_a_tenth() -> None:
    assert outlived(Point(100), 100) == pytest.approx(10)


def test_the_clock_stops_during_prefill_and_then_advances_with_time() -> None:
    arrays = ledger()
    arrays.sent(job("a"), 0, 0.0, 0.0, NO_BLOCKS)  # its prompt takes 1 s
    arrays.admitted("a", 0, 0.9)
    assert remaining_tokens(arrays) == 100
    arrays.sent(job("b", tokens=50), 0, 3.0, 999.0, NO_BLOCKS)  # 2 s of decoding for a: 20 tokens
    assert remaining_tokens(arrays) == pytest.approx(80 + 50)


def test_a_job_without_a_slot_waits_until_one_is_free() -> None:
    arrays = ledger(seqs=1)
    arrays.sent(job("a"), 0, 0.0, 1000.0, NO_BLOCKS)
    arrays.sent(job("b"), 0, 0.0, 1000.0, NO_BLOCKS)
    assert arrays.loads[0, columns.RUNNING] == 1
    arrays.finished("a", 0, 5.0)
    assert arrays.loads[0, columns.RUNNING] == 1
    assert remaining_tokens(arrays) == 100  # b has no token yet


def test_an_answer_starts_when_the_engine_admits_it() -> None:
    arrays = ledger()
    arrays.sent(job("a"), 0, 0.0, 999.0, NO_BLOCKS)
    arrays.sent(job("b", tokens=50), 0, 1.0, 999.0, NO_BLOCKS)
    assert remaining_tokens(arrays) == pytest.approx(90 + 50, abs=0.1)
    arrays.admitted("a", 0, 1.0)
    assert remaining_tokens(arrays) == pytest.approx(100 + 50, abs=0.1)


def test_a_job_that_outlives_its_prediction_gets_a_new_end() -> None:
    arrays = ledger()
    arrays.sent(Job("a", 0.0, 1, prediction=LogT(np.log(100.0), 0.3, 8192)), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.sent(job("b", tokens=5000, prompt=1), 0, 60.0, 0.0, NO_BLOCKS)  # 600 steps later
    assert remaining_tokens(arrays) > 5000 + 50  # not negative, and not short: it has run six times its median


def test_a_retried_job_counts_only_on_its_last_engine() -> None:
    arrays = ledger(engines=2)
    arrays.sent(job("a"), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.sent(job("a"), 1, 1.0, 0.0, NO_BLOCKS)
    assert arrays.loads[:2, columns.LIVE].tolist() == [0, 1]
    assert arrays.finished("a", 0, 2.0) is None  # an event of the first engine is ignored
    assert len(arrays) == 1


def test_a_job_without_events_is_dropped() -> None:
    arrays = ledger()
    for name in "abc":
        arrays.sent(job(name), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.admitted("b", 0, SILENCE_S)
    arrays.drop_silent(SILENCE_S + 1)
    assert "b" in arrays
    assert len(arrays) == 1


def test_a_scrape_with_fewer_jobs_drops_those_silent_for_longest() -> None:
    arrays = ledger(engines=2)
    for name in "abcd":
        arrays.sent(job(name), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.sent(job("elsewhere"), 1, 0.0, 0.0, NO_BLOCKS)
    arrays.admitted("a", 0, 50.0)
    arrays.sent(job("new"), 0, 99.0, 0.0, NO_BLOCKS)
    arrays.sent(job("newer"), 0, 101.0, 0.0, NO_BLOCKS)  # after the scrape, which cannot include it
    arrays.scraped(0, Scraped(0, 100.0, running=2, waiting=1))
    assert {name for name in ("a", "b", "c", "d", "new", "newer", "elsewhere") if name in arrays} == {
        "a", "d", "new", "newer", "elsewhere",
    }  # fmt: skip
    assert arrays.loads[0, columns.FOREIGN] == 0


def test_until_the_next_scrape_a_job_counts_for_routers_that_see_the_same_scrape() -> None:
    arrays = ledger()
    arrays.sent(job("a"), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.scraped(0, Scraped(0, 10.0, running=4, waiting=0))
    arrays.sent(job("b"), 0, 11.0, 0.0, NO_BLOCKS)
    assert arrays.loads[0, columns.FOREIGN] == 6, "three of others, and three more for the three times larger fleet"
    arrays.scraped(0, Scraped(0, 12.0, running=2, waiting=0))
    arrays.sent(job("c"), 0, 13.0, 0.0, NO_BLOCKS)
    assert arrays.loads[0, columns.FOREIGN] == 0


def test_a_scrape_with_more_jobs_adds_foreign_load_and_an_older_one_changes_nothing() -> None:
    arrays = ledger()
    arrays.sent(job("a"), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.scraped(0, Scraped(0, 10.0, running=5, waiting=3, kv_use=0.5))
    arrays.scraped(0, Scraped(0, 9.0, running=0, waiting=0))
    assert arrays.loads[0, columns.FOREIGN] == 7
    assert arrays.loads[0, columns.KV_USE] == 0.5
    assert "a" in arrays


def test_a_job_with_generated_tokens_is_prefilled_with_them() -> None:
    arrays = ledger()
    arrays.sent(job("a", generated=40), 0, 0.0, 0.0, NO_BLOCKS)
    assert arrays.loads[0, columns.UNCACHED] == 1040
    assert remaining_tokens(arrays) == 60
