from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job
from lengthwise.routers import EngineInfo, Scraped, Speed
from lengthwise.routers.ledger import SILENCE_S, SURVIVAL_CURVE, Ledger, Load
from lengthwise.routers.ledger_kernel import rest_of_log_t

NO_BLOCKS = np.zeros(0, np.uint64)
STEADY = Speed(prefill_token_s=0.001, step_s=0.1, sequence_s=0.0, kv_token_s=0.0, prefill_pair_s=0.0)


def ledger(*, seqs: int = 4, engines: int = 1) -> Ledger:
    made = Ledger()
    for slot in range(engines):
        made.add(slot, EngineInfo(slot, STEADY, max_num_seqs=seqs))
    return made


def job(name: str, tokens: int = 100, prompt: int = 1000, **more: object) -> Job:
    return Job(name, 0.0, prompt, prediction=Point(tokens), **more)  # type: ignore[arg-type]


def left(arrays: Ledger, slot: int = 0) -> float:
    """Tokens still to be decoded, by the ledger's sums."""
    row = arrays.loads[slot]
    return float(row[Load.ENDS] - row[Load.RUNNING] * row[Load.CLOCK] + row[Load.WAITING_TOKENS])


@settings(deadline=None)
@given(st.floats(2, 8), st.floats(0.1, 2.0), st.integers(1, 8000), st.integers(16, 8192))
def test_what_is_left_of_an_answer_is_what_its_prediction_says(mu: float, sigma: float, age: int, cap: int) -> None:
    if age >= cap:
        assert rest_of_log_t(SURVIVAL_CURVE, mu, sigma, float(cap), float(age)) == 0
        return
    prediction = LogT(mu, sigma, cap)
    if (
        prediction.survival(age) < 1e-7
    ):  # near where predictions count as outlived the two may differ on which side they are
        return
    assert rest_of_log_t(SURVIVAL_CURVE, mu, sigma, float(cap), float(age)) == pytest.approx(
        prediction.remaining(age).mean(), rel=0.005, abs=0.1
    )


def test_the_clock_stands_still_while_prompts_are_computed_and_then_goes_with_time() -> None:
    arrays = ledger()
    arrays.sent(job("a"), 0, 0.0, 0.0, NO_BLOCKS)  # its prompt takes 1 s
    arrays.progressed("a", 0, 0.9)
    assert left(arrays) == 100
    arrays.sent(job("b", tokens=50), 0, 3.0, 999.0, NO_BLOCKS)  # 2 s of decoding for a: 20 tokens
    assert left(arrays) == pytest.approx(80 + 50)


def test_who_finds_no_place_waits_until_one_is_free() -> None:
    arrays = ledger(seqs=1)
    arrays.sent(job("a"), 0, 0.0, 1000.0, NO_BLOCKS)
    arrays.sent(job("b"), 0, 0.0, 1000.0, NO_BLOCKS)
    assert arrays.loads[0, Load.RUNNING] == 1
    arrays.finished("a", 0, 5.0)
    assert arrays.loads[0, Load.RUNNING] == 1
    assert left(arrays) == 100  # b has not had a token


def test_progress_corrects_the_clock_and_old_news_does_not() -> None:
    arrays = ledger()
    arrays.sent(job("a"), 0, 0.0, 999.0, NO_BLOCKS)
    arrays.progressed("a", 0, 1.0, generated=90)
    assert left(arrays) == pytest.approx(10)
    arrays.progressed("a", 0, 1.0, generated=30)
    arrays.progressed("a", 0, 1.0)
    assert left(arrays) == pytest.approx(10)


def test_who_outlives_a_prediction_is_predicted_anew() -> None:
    arrays = ledger()
    arrays.sent(Job("a", 0.0, 1, prediction=LogT(np.log(100.0), 0.3, 8192)), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.sent(job("b", tokens=5000, prompt=1), 0, 60.0, 0.0, NO_BLOCKS)  # 600 steps later
    assert left(arrays) > 5000 + 50  # not negative, and not short: it has run six times its median


def test_a_job_that_is_chosen_for_again_is_only_where_it_went_last() -> None:
    arrays = ledger(engines=2)
    arrays.sent(job("a"), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.sent(job("a"), 1, 1.0, 0.0, NO_BLOCKS)
    assert arrays.loads[:2, Load.LIVE].tolist() == [0, 1]
    assert arrays.finished("a", 0, 2.0) is None  # the first engine's word counts no more
    assert len(arrays) == 1


def test_a_job_of_which_nothing_is_heard_is_forgotten() -> None:
    arrays = ledger()
    for name in "abc":
        arrays.sent(job(name), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.progressed("b", 0, SILENCE_S)
    arrays.drop_silent(SILENCE_S + 1)
    assert "b" in arrays
    assert len(arrays) == 1


def test_a_scrape_that_knows_of_fewer_makes_us_forget_the_most_silent() -> None:
    arrays = ledger(engines=2)
    for name in "abcd":
        arrays.sent(job(name), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.sent(job("elsewhere"), 1, 0.0, 0.0, NO_BLOCKS)
    arrays.progressed("a", 0, 50.0)
    arrays.sent(job("new"), 0, 99.0, 0.0, NO_BLOCKS)
    arrays.sent(job("newer"), 0, 101.0, 0.0, NO_BLOCKS)  # after the scrape: it cannot know of it
    arrays.scraped(0, Scraped(0, 100.0, running=2, waiting=1))
    assert {name for name in ("a", "b", "c", "d", "new", "newer", "elsewhere") if name in arrays} == {
        "a", "d", "new", "newer", "elsewhere",
    }  # fmt: skip
    assert arrays.loads[0, Load.FOREIGN] == 0


def test_a_scrape_that_knows_of_more_adds_foreign_load_and_an_older_one_changes_nothing() -> None:
    arrays = ledger()
    arrays.sent(job("a"), 0, 0.0, 0.0, NO_BLOCKS)
    arrays.scraped(0, Scraped(0, 10.0, running=5, waiting=3, kv_use=0.5))
    arrays.scraped(0, Scraped(0, 9.0, running=0, waiting=0))
    assert arrays.loads[0, Load.FOREIGN] == 7
    assert arrays.loads[0, Load.KV_USE] == 0.5
    assert "a" in arrays


def test_a_job_that_brings_tokens_along_is_computed_with_them() -> None:
    arrays = ledger()
    arrays.sent(job("a", generated=40), 0, 0.0, 0.0, NO_BLOCKS)
    assert arrays.loads[0, Load.UNCACHED] == 1040
    assert left(arrays) == 60
    arrays.progressed("a", 0, 0.0, generated=50)
    assert left(arrays) == 50
