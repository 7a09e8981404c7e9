"""The behaviour of each router, by examples."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job
from lengthwise.routers import Admitted, EngineInfo, Finished, NoEngineError, Router, Scraped, Speed, make_router

SLOW = Speed(prefill_token_s=0.001, step_s=0.1, sequence_s=0.001, kv_token_s=1e-6, prefill_pair_s=0.0)
FAST = Speed(prefill_token_s=0.0001, step_s=0.01, sequence_s=0.0001, kv_token_s=1e-7, prefill_pair_s=0.0)


def blocks(prefix: int, length: int = 20, shared: int = 18, tail: int = 0) -> list[int]:
    """Return a prompt whose first `shared` blocks are those of its prefix."""
    return [1000 * prefix + n if n < shared else 10**6 * (tail + 1) + 1000 * prefix + n for n in range(length)]


def job(name: str, tokens: float = 100, prefix: int | None = None, **more: object) -> Job:
    hashes = () if prefix is None else blocks(prefix, tail=hash(name) % 1000)
    return Job(name, 0.0, 20 * 64, prediction=Point(int(tokens)), blocks=hashes, **more)  # type: ignore[arg-type]


def fleet(spec: str, *engines: EngineInfo) -> Router:
    router = make_router(spec)
    for engine in engines or (EngineInfo("a"), EngineInfo("b"), EngineInfo("c")):
        router.engine_up(engine)
    return router


def chosen(router: Router, *jobs: Job, now: float = 0.0) -> str:
    return "".join(str(router.choose(each, now).engine) for each in jobs)


def test_round_robin_takes_live_engines_in_turn() -> None:
    router = fleet("round_robin")
    assert chosen(router, *(job(str(n)) for n in range(4))) == "abca"
    router.engine_down("b")
    assert chosen(router, *(job(str(n)) for n in range(3))) == "cac"
    router.engine_up(EngineInfo("d"))  # takes the number of b
    assert chosen(router, *(job(str(n)) for n in range(3))) == "adc"


@pytest.mark.parametrize("spec", ["random", "power_of_two"])
def test_random_choices_depend_on_the_seed_and_spread(spec: str) -> None:
    first, again, other = (
        chosen(fleet(f"{spec}:seed={seed}"), *(job(str(n)) for n in range(60))) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert min(first.count(name) for name in "abc") > 10


def test_least_outstanding_chooses_the_fewest_requests() -> None:
    router = fleet("least_outstanding")
    assert chosen(router, *(job(str(n)) for n in range(4))) == "abca"
    router.observe(Finished("1", "b", 1.0))
    assert chosen(router, job("x")) == "b"
    router.observe(Scraped("b", 2.0, running=9, waiting=0))
    assert chosen(router, job("y"), now=2.0) == "c"


def test_least_load_weighs_prompts_by_speed_and_avoids_full_memory() -> None:
    router = fleet("least_load", EngineInfo("a", FAST), EngineInfo("b", SLOW))
    assert (
        chosen(router, *(job(str(n)) for n in range(8))) == "aaaaaaaa"
    )  # nine prompts on a take less time than one on b
    router.observe(Scraped("a", 1.0, running=8, waiting=0, kv_use=0.95))
    assert chosen(router, job("x")) == "b"


def test_least_load_counts_generated_tokens() -> None:
    router = fleet("least_load", EngineInfo("a", SLOW), EngineInfo("b", SLOW))
    router.choose(job("0", tokens=4000), 0.0, ["a"])
    router.choose(job("1", tokens=4000), 90.0, ["b"])
    router.observe(Admitted("0", "a", 0.0))
    router.observe(Scraped("a", 90.0, running=1, waiting=0))
    router.choose(job("2"), 90.0, ["a"])
    router.observe(Finished("2", "a", 90.0))
    assert chosen(router, job("3"), now=90.0) == "b"  # a's answer has had 900 tokens


def test_cache_aware_follows_the_prefix_until_queues_are_unbalanced() -> None:
    router = fleet("cache_aware:absolute=3,relative=1.5")
    assert chosen(router, *(job(str(n), prefix=1) for n in range(4))) == "aaaa"
    assert chosen(router, job("other", prefix=2)) == "b"  # its cache is empty
    assert chosen(router, job("5", prefix=1)) == "c"  # a has four more than c


def test_dynamo_weighs_overlap_against_blocks_in_use() -> None:
    router = fleet("dynamo")
    assert chosen(router, job("0", prefix=1), job("1", prefix=1)) == "ab"  # the first prompt is in prefill
    assert chosen(router, job("2", prefix=2), job("3", prefix=1), now=9.0) == "ca"


def test_e2_exploits_a_known_prefix_and_explores_with_a_new_one() -> None:
    router = fleet("e2")
    first = router.choose(job("0", prefix=1), 0.0)
    assert first.terms["exploit"] == 0
    again = router.choose(job("1", prefix=1), 1.0)
    assert again.engine == first.engine
    assert again.terms["exploit"] == 1
    assert router.choose(job("2", prefix=2), 1.0).engine != first.engine


def test_e2_explores_on_an_engine_with_a_high_hit_ratio() -> None:
    router = fleet("e2")
    here = [router.choose(job(str(n), prefix=1), float(n)).engine for n in range(9)]
    decision = router.choose(job("new", prefix=5), 9.0)
    assert decision.engine == here[0]
    assert decision.terms["hit_ratio"] >= 0.7
    assert "hit_ratio" not in router.choose(job("later", prefix=6), 60.0).terms  # outside the window of 30 s


def test_e2_moves_prefixes_from_the_heaviest_engine_to_the_lightest() -> None:
    at_last = {}
    for settle in (0, 50):
        router = fleet(f"e2:hits=1,settle={settle}", EngineInfo("a", SLOW), EngineInfo("b", SLOW))
        at_first = {prefix: router.choose(job(f"{prefix}", prefix=prefix), 0.0, ["a"]).engine for prefix in range(4)}
        assert set(at_first.values()) == {"a"}
        for prefix in range(4):  # b is allowed, but all prefixes are a's
            router.choose(job(f"again {prefix}", prefix=prefix), 0.1)
        last = [router.choose(job(f"last {prefix}", prefix=prefix), 0.2).engine for prefix in range(4)]
        at_last[settle] = sorted(map(str, last))
    assert at_last[0] == ["a", "a", "b", "b"]
    assert at_last[50] == ["a", "a", "a", "a"], "not before fifty requests per engine"


def test_e2_length_distinguishes_long_from_short_answers_and_e2_does_not() -> None:
    for spec, length_aware in (("e2", False), ("e2_length", True)):
        router = fleet(f"{spec}:hits=1,imbalance=1000", EngineInfo("a", SLOW), EngineInfo("b", SLOW))
        # The same prompts in the same numbers, so that only answers differ.
        router.choose(job("long", tokens=3000, prefix=1, max_tokens=4000), 0.0, ["a"])
        router.choose(job("short", tokens=1, prefix=2, max_tokens=4000), 0.0, ["b"])
        assert (chosen(router, job("next", prefix=3)) == "b") == length_aware


def test_lengthwise_follows_the_prefix_but_not_into_a_long_queue() -> None:
    router = fleet("lengthwise")
    assert chosen(router, job("0", prefix=1)) == "a"
    assert chosen(router, job("1", prefix=1), now=1.0) == "a"
    for n in range(200):
        router.choose(job(f"crowd {n}", tokens=4000), 1.0, ["a"])
    assert chosen(router, job("2", prefix=1), now=1.0) != "a"


def test_lengthwise_prefers_short_remaining_answers_at_equal_counts() -> None:
    router = fleet("lengthwise", EngineInfo("a", SLOW, max_num_seqs=2), EngineInfo("b", SLOW, max_num_seqs=2))
    for n in range(2):
        router.choose(job(f"long {n}", tokens=3000), 0.0, ["a"])
        router.choose(job(f"short {n}", tokens=30), 0.0, ["b"])
    decision = router.choose(job("next"), 0.1)
    assert decision.engine == "b"
    assert set(decision.terms) == {"first_token", "urgency", "decode", "delay", "eviction", "overflow"}


def test_lengthwise_prefers_fast_engines() -> None:
    router = fleet("lengthwise", EngineInfo("a", SLOW), EngineInfo("b", FAST))
    assert chosen(router, *(job(str(n)) for n in range(20))).count("b") >= 18


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 300), st.floats(1, 20))
def test_lengthwise_takes_the_least_of_all_costs(seed: int, before: int, urgency: float) -> None:
    """An engine that the lower bound skips in the compiled loop is never cheaper."""
    rng = np.random.default_rng(seed)
    speeds = (SLOW, FAST, Speed())
    engines = [
        EngineInfo(n, speeds[rng.integers(3)], int(rng.integers(2_000, 300_000)), max_num_seqs=int(rng.integers(1, 64)))
        for n in range(5)
    ]
    router = fleet(f"lengthwise:urgency={urgency}", *engines)

    def drawn(name: str) -> Job:
        return job(name, tokens=int(rng.integers(1, 3000)), prefix=int(rng.integers(4)))

    for n in range(before):
        router.choose(drawn(str(n)), n * 0.02, [int(rng.integers(5))])
    router.observe(Scraped(2, before * 0.02, int(rng.integers(80)), 0))
    new, now = drawn("new"), before * 0.02 + 1.0
    costs = {n: sum(deepcopy(router).choose(new, now, [n]).terms.values()) for n in range(5)}
    least = sum(router.choose(new, now).terms.values())
    assert least == pytest.approx(min(costs.values()))


@pytest.mark.parametrize(("spec", "more"), [("lengthwise", 1.0), ("lengthwise:urgency=15", 2.0)])
def test_lengthwise_counts_the_wait_for_a_slot_again_for_later_requests(spec: str, more: float) -> None:
    router = fleet(spec, EngineInfo("a", SLOW, max_num_seqs=2))
    for n in range(2):
        router.choose(job(f"long {n}", tokens=3000), 0.0)
    alone = fleet(spec, EngineInfo("a", SLOW, max_num_seqs=2)).choose(job("alone"), 10.0).terms
    crowded = router.choose(job("late"), 10.0).terms  # no prompt is being computed any more
    assert alone["urgency"] == 0
    waits = crowded["urgency"] / more
    assert waits > 100
    assert crowded["first_token"] - alone["first_token"] == pytest.approx(waits, rel=0.01)


def test_lengthwise_prices_the_risk_of_running_out_of_memory() -> None:
    small, large = EngineInfo("a", FAST, kv_tokens=8_000), EngineInfo("b", FAST, kv_tokens=800_000)
    router = fleet("lengthwise", small, large)
    wide = Job("wide", 0.0, 1000, prediction=LogT(7.0, 1.0, 8192))
    assert chosen(router, wide) == "b"
    assert router.choose(Job("w2", 0.0, 1000, prediction=LogT(7.0, 1.0, 8192)), 0.0, ["a"]).terms["overflow"] > 0


def test_lengthwise_avoids_foreign_load_until_no_scrape_confirms_it() -> None:
    router = fleet("lengthwise", EngineInfo("a"), EngineInfo("b"))
    router.observe(Scraped("a", 0.0, running=250, waiting=100))
    assert chosen(router, job("0"), now=1.0) == "b"
    router.observe(Finished("0", "b", 2.0))
    busy, free = (sum(router.choose(job("1"), 600.0, [name]).terms.values()) for name in "ab")
    assert busy == pytest.approx(free)


def test_lengthwise_needs_neither_predictions_nor_blocks() -> None:
    router = fleet("lengthwise")
    assert sorted(chosen(router, *(Job(str(n), 0.0, 500) for n in range(3)))) == ["a", "b", "c"]


def test_only_length_aware_routers_use_predictions() -> None:
    assert [name for name in ("random", "e2", "e2_length", "lengthwise") if make_router(name).uses_predictions] == [
        "e2_length",
        "lengthwise",
    ]


def test_a_choice_without_engines_is_an_error() -> None:
    router = make_router("lengthwise")
    with pytest.raises(NoEngineError, match="no engine is up"):
        router.choose(job("0"), 0.0)
    router.engine_up(EngineInfo("a"))
    with pytest.raises(NoEngineError, match="may be chosen"):
        router.choose(job("0"), 0.0, ["b"])


def test_an_engine_that_rejoins_has_an_empty_cache() -> None:
    router = fleet("lengthwise")
    assert chosen(router, job("0", prefix=1)) == "a"
    router.observe(Admitted("0", "a", 0.1))
    router.engine_down("a")
    router.engine_up(EngineInfo("a"))
    before = router.choose(job("1", prefix=1), 0.2, ["a"]).terms["first_token"]
    assert router.choose(job("1", prefix=1), 9.0, ["a"]).terms["first_token"] < before
