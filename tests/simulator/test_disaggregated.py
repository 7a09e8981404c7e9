"""Prefill and decode pools: every request is served, times add up, and requests without KV memory wait or recompute."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.predictors.probe import first_error, load_probe
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.routers import ROUTERS
from lengthwise.simulator import Fleet, KvLink, Outcome, Pools, predict_workload, simulate
from lengthwise.simulator.disaggregated import Transfers
from lengthwise.simulator.grid import Plan
from lengthwise.simulator.switching import Switching
from lengthwise.workloads import Workload
from tests.simulator.builders import TICK, UNEVEN, fleet, requests
from tests.simulator.test_routing import shared_prefixes

FREE = KvLink(math.inf, 0.0)
BYTES = 1000
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12)


def with_kv_size(**limits: Any) -> Fleet:
    """Return engines with a known KV size."""
    made = fleet(**limits)
    return Fleet(tuple(replace(spec, kv_bytes_per_token=BYTES) for spec in made.engines))


def disaggregated(workload: Workload, fleet: Fleet, pools: Pools, policy: str = "fcfs", **options: Any) -> Outcome:
    return simulate(workload, fleet, policy, pools=pools, **options)


def small(engines: int = 4) -> Fleet:
    return Fleet.parse(f"{engines}*mistral-7b@a6000").limited_to(max_num_seqs=8, kv_tokens=20_000)


def phase_times(prompt: int, answer: int, budget: int) -> tuple[float, float]:
    """Return the seconds of a single request: its prompt in chunks, then its answer from the second token on."""
    prefill = 0.0
    for begin in range(0, prompt, budget):
        end = min(prompt, begin + budget)
        alone = begin > 0 and end == begin + 1  # a single token over a context is a decode to the engine
        prefill += UNEVEN.step_s(contexts=[end]) if alone else UNEVEN.step_s(chunks=[(begin, end)])
    return prefill, sum(UNEVEN.step_s(contexts=[prompt + made]) for made in range(1, answer))


def check_laws(outcome: Outcome, workload: Workload, pools: Pools) -> None:
    """Each request is served by one prefill engine and, if it has more than one token, by one decode engine."""
    assert outcome.handover is not None
    over = outcome.handover
    assert not np.isnan(outcome.finished_s).any()
    assert ((outcome.engine >= 0) & (outcome.engine < pools.prefill)).all()
    more = workload.output_tokens > 1
    assert ((over.engine >= pools.prefill) == more).all()
    assert (over.engine[~more] == -1).all()
    assert (over.engine < pools.prefill + pools.decode).all()
    for number, engine in enumerate(outcome.engines):
        here = outcome.engine == number if number < pools.prefill else over.engine == number
        assert set(engine.admissions.tolist()) == set(np.flatnonzero(here).tolist())
    assert (outcome.started_s >= outcome.arrival_s).all()
    assert (outcome.first_token_s > outcome.started_s).all()
    assert (outcome.finished_s[~more] == outcome.first_token_s[~more]).all()
    assert (over.arrived[more] >= outcome.first_token_s[more]).all()
    assert (over.started[more] >= over.arrived[more]).all()
    assert (outcome.finished_s[more] > over.started[more]).all()
    assert (over.sent_tokens <= workload.input_tokens).all()


@given(LENGTHS, st.sampled_from([5, 64]), st.sampled_from([0.0, 0.05]))
@settings(max_examples=40)
def test_without_queueing_latency_is_the_sum_of_prefill_transfer_and_decode(
    lengths: list[tuple[int, int]], budget: int, latency_s: float
) -> None:
    n = len(lengths)
    workload, engines = requests(lengths, [0.1 * row for row in range(n)]), {"seqs": 1, "budget": budget}
    pools = Pools(n, n, KvLink(1e-3, latency_s))
    outcome = disaggregated(workload, with_kv_size(cost=UNEVEN, engines=2 * n, **engines), pools)
    check_laws(outcome, workload, pools)
    for row, (prompt, answer) in enumerate(lengths):
        prefill, decode = phase_times(prompt, answer, budget)
        transfer = (latency_s + prompt * BYTES / 1e6) * (answer > 1)
        assert outcome.first_token_s[row] - outcome.arrival_s[row] == pytest.approx(prefill, rel=1e-9)
        assert outcome.finished_s[row] - outcome.arrival_s[row] == pytest.approx(prefill + transfer + decode, rel=1e-9)


@given(LENGTHS)
@settings(max_examples=30)
def test_a_single_request_with_a_free_transfer_is_served_as_on_one_engine(lengths: list[tuple[int, int]]) -> None:
    n = len(lengths)
    workload = requests(lengths, 0.0)
    split = disaggregated(workload, with_kv_size(cost=UNEVEN, engines=2 * n), Pools(n, n, FREE))
    mixed = simulate(workload, with_kv_size(cost=UNEVEN, engines=n))
    np.testing.assert_allclose(split.finished_s, mixed.finished_s, rtol=1e-12)
    np.testing.assert_allclose(split.first_token_s, mixed.first_token_s, rtol=1e-12)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.floats(0, 3)), min_size=1, max_size=40),
    st.sampled_from(["fcfs", "sjf", "tie", "srpt", "lengthwise", "fair(fcfs)"]),
    st.sampled_from(["round_robin", "lengthwise", "e2_length"]),
    st.sampled_from(["prompt", "peak", "reserve"]),
    st.booleans(),
)
@settings(max_examples=40)
def test_every_request_is_served_once_with_little_memory(
    drawn: list[tuple[int, int, float]], policy: str, router: str, admission: str, caching: bool
) -> None:
    drawn = sorted(drawn, key=lambda each: each[2])
    workload = requests([each[:2] for each in drawn], [each[2] for each in drawn])
    engines = with_kv_size(cost=UNEVEN, engines=3, seqs=4, blocks=26, caching=caching, admission=admission)
    pools = Pools(1, 2, KvLink(1e-3, 0.002))
    served = disaggregated(workload, engines, pools, policy, router=router, predictor="oracle", refresh="none")
    check_laws(served, workload, pools)


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_serves_both_pools_deterministically(router: str) -> None:
    workload, pools = shared_prefixes(), Pools(1, 3)
    first, again = (disaggregated(workload, small(), pools, router=router) for _ in range(2))
    check_laws(first, workload, pools)
    assert first.finished_s.tobytes() == again.finished_s.tobytes()
    assert first.handover is not None
    assert set(first.handover.engine.tolist()) == {-1, 1, 2, 3}


def test_a_request_without_memory_to_decode_waits_until_all_of_it_fits() -> None:
    workload = requests([(16, 3), (16, 3)])
    split = disaggregated(workload, with_kv_size(cost=TICK, engines=2, blocks=6, seqs=8, budget=16), Pools(1, 1, FREE))
    assert split.handover is not None
    assert split.first_token_s.tolist() == [1.0, 2.0]
    assert split.finished_s.tolist() == [3.0, 5.0], "5 of 6 blocks were taken until 3"
    assert split.handover.arrived.tolist() == [1.0, 2.0]
    assert split.handover.started.tolist() == [1.0, 3.0]
    assert not split.preemptions.any()


def test_a_request_preempted_while_decoding_recomputes_its_prompt_on_the_decode_engine() -> None:
    workload = requests([(8, 12), (8, 12)])
    split = disaggregated(workload, with_kv_size(cost=TICK, engines=2, blocks=6), Pools(1, 1, FREE))
    assert split.first_token_s.tolist() == [1.0, 1.0]
    assert split.preemptions.tolist() == [0, 1]
    assert split.recomputed_tokens.tolist() == [0, 12]
    # The second had 5 tokens at 5; from 12 on, a step for all that was lost and its sixth, then six more.
    assert split.finished_s.tolist() == [12.0, 19.0]


def test_only_kv_that_is_not_cached_is_sent() -> None:
    head = [1, 2, 3, 4]
    workload = requests([(17, 4), (17, 4)], [0.0, 30.0], blocks=[head, head], block_size=4)
    link = KvLink(BYTES * 1e-9, 0.0)  # a token a second
    split = disaggregated(workload, with_kv_size(cost=TICK, engines=2, caching=True), Pools(1, 1, link))
    assert split.handover is not None
    assert split.handover.sent_tokens.tolist() == [17, 1]
    np.testing.assert_allclose(split.handover.arrived, [1 + 17, 31 + 1])


def test_cached_kv_that_is_evicted_before_the_transfer_is_recomputed() -> None:
    head = [1, 2, 3, 4]
    # While the third waits for memory, the answer of the second evicts the blocks that the third shares.
    workload = requests(
        [(17, 2), (60, 20), (17, 4)], [0.0, 5.0, 13.0], blocks=[head, list(range(10, 25)), head], block_size=4
    )
    engines = with_kv_size(cost=TICK, engines=2, caching=True, blocks=20, budget=8)
    split = disaggregated(workload, engines, Pools(1, 1, FREE))
    assert split.handover is not None
    assert split.handover.sent_tokens.tolist() == [17, 60, 1]
    assert split.first_token_s.tolist() == [3.0, 13.0, 14.0]
    assert split.handover.started.tolist() == [3.0, 13.0, 32.0]
    assert split.finished_s.tolist() == [4.0, 32.0, 37.0], "18 tokens, 8 a step, and two steps more"


def test_ports_send_and_receive_one_transfer_at_a_time() -> None:
    transfers = Transfers(Pools(2, 2, KvLink(1.0, 0.5)), 0.1)
    assert transfers.send(0, 0, 10, 0.0) == pytest.approx(1.5)
    assert transfers.send(0, 1, 10, 0.2) == pytest.approx(2.5), "the sender is busy until 1"
    assert transfers.send(1, 1, 10, 0.3) == pytest.approx(3.5), "the receiver until 2"
    assert transfers.send(1, 0, 0, 9.0) == pytest.approx(9.5)


def test_order_in_the_decode_pool_is_by_the_refreshed_prediction() -> None:
    workload = requests([(4, 2), (4, 30), (4, 20), (4, 10)], [0.0, 1.0, 2.0, 3.0])
    engines = with_kv_size(cost=UNEVEN, engines=2, seqs=1)
    slow = Fleet((engines.engines[0], replace(engines.engines[1], cost=TICK)))
    for refresh, order in ((None, [0, 1, 2, 3]), ("oracle", [0, 1, 3, 2])):
        split = disaggregated(workload, slow, Pools(1, 1, FREE), "sjf", predictor="none", refresh=refresh)
        assert split.engines[1].admissions.tolist() == order


def test_a_length_aware_decode_router_has_lower_latency_than_a_random_one() -> None:
    workload = shared_prefixes(400, rate=24.0)
    pools = Pools(2, 2)
    ours = disaggregated(workload, small(), pools, router="lengthwise")
    random = disaggregated(workload, small(), replace(pools, decode_router="random"), router="lengthwise")
    assert ours.first_token_s.tobytes() == random.first_token_s.tobytes(), "the first pool is the same"
    assert ours.summary.e2e_s.mean < random.summary.e2e_s.mean


def test_a_slow_link_delays_the_second_token_and_not_the_first() -> None:
    quick, slow = (
        disaggregated(shared_prefixes(), small(), Pools(2, 2, KvLink(gb_per_s))) for gb_per_s in (25.0, 0.05)
    )
    assert quick.first_token_s.tobytes() == slow.first_token_s.tobytes()
    assert quick.summary.e2e_s.mean + 0.1 < slow.summary.e2e_s.mean


def test_a_request_that_no_engine_can_decode_is_refused_before_prefill() -> None:
    engines = with_kv_size(cost=UNEVEN, engines=3, blocks=8)
    large = replace(engines.engines[0], kv_tokens=4000)
    workload = requests([(10, 5), (10, 400), (20, 5)], [0.0, 1.0, 2.0])
    split = disaggregated(workload, Fleet((large, *engines.engines[1:])), Pools(1, 2))
    assert np.isnan(split.finished_s).tolist() == [False, True, False]
    assert np.isnan(split.first_token_s).tolist() == [False, True, False]
    assert split.summary.refused == 1


def test_only_engines_that_fit_the_answer_decode_it() -> None:
    engines = with_kv_size(cost=UNEVEN, engines=3, blocks=8)
    large = replace(engines.engines[0], kv_tokens=4000)
    workload = requests([(10, 100), (10, 5)] * 6, [0.1 * row for row in range(12)])
    split = disaggregated(workload, Fleet((*engines.engines[1:], large)), Pools(1, 2))
    assert split.handover is not None
    assert not np.isnan(split.finished_s).any()
    assert (split.handover.engine[::2] == 2).all()


def test_the_table_has_the_decode_engine_and_the_tokens_sent() -> None:
    workload = requests([(10, 5), (10, 1)])
    table = disaggregated(workload, with_kv_size(cost=UNEVEN, engines=2), Pools(1, 1)).to_table()
    assert table["decode_engine"].to_pylist() == ["engine-1", None]
    assert table["sent_tokens"].to_pylist() == [10, 0]
    assert table["kv_arrived_s"].null_count == table["decode_started_s"].null_count == 1
    assert "decode_engine" not in simulate(workload, with_kv_size(engines=1)).to_table().column_names


@pytest.mark.parametrize("text", ["8:0", "0:8", "0:0"])
def test_a_pool_without_engines_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="each pool needs an engine"):
        Pools.parse(text)


@pytest.mark.parametrize("text", ["8", "2:6:1", "2-6", ":", "-1:3", "2:x", ""])
def test_a_malformed_split_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="PREFILL:DECODE"):
        Pools.parse(text)


def test_pools_that_do_not_add_up_to_the_fleet_are_an_error() -> None:
    with pytest.raises(InputError, match="2:6 are 8 engines of a fleet of 4") as error:
        disaggregated(requests([(10, 5)]), small(4), Pools.parse("2:6"))
    assert "add up to 4" in str(error.value)


def test_kv_of_unknown_or_different_size_is_an_error() -> None:
    with pytest.raises(InputError, match="kv_bytes_per_token"):
        disaggregated(requests([(10, 5)]), fleet(engines=2), Pools(1, 1))
    two = Fleet.parse("1*llama-3-8b@a100,1*qwen2.5-7b@a100")
    with pytest.raises(InputError, match="one model for all"):
        disaggregated(requests([(10, 5)]), two, Pools(1, 1))


@pytest.mark.parametrize("gb_per_s", [0.0, -1.0, math.nan])
def test_a_link_without_bandwidth_is_an_error(gb_per_s: float) -> None:
    with pytest.raises(InputError, match="kv-link"):
        KvLink(gb_per_s)


def test_kv_bytes_follow_from_the_shape_of_the_model() -> None:
    llama = Fleet.parse("1*llama-3-8b@a100")
    assert llama.engines[0].kv_bytes_per_token == 2 * 2 * 32 * 8 * 128
    assert Pools(1, 1, KvLink(25.0)).token_s(llama) == pytest.approx(131_072 / 25e9)


def test_the_probe_refreshes_predictions_after_prefill_and_makes_none_before() -> None:
    workload, pools = shared_prefixes(), Pools(2, 2)
    probed = disaggregated(workload, small(), pools, predictor="none", refresh="probe")
    check_laws(probed, workload, pools)
    for predict in (
        lambda: disaggregated(workload, small(), pools, predictor="probe"),
        lambda: Plan(small(), ["fcfs"], ["probe"], pools=pools),
        lambda: resolve_predictor("probe"),
    ):
        with pytest.raises(InputError, match="exists after prefill") as error:
            predict()
        assert "--refresh" in str(error.value)


def test_predictions_of_the_probe_err_as_its_card_says() -> None:
    workload = shared_prefixes(400, rate=24.0)
    probed = predict_workload(workload, "probe", seed=1)
    true = workload.output_tokens
    constant = np.abs(true - np.median(true)).sum()
    assert np.abs(np.exp(probed.mu) - true).sum() / constant == pytest.approx(
        first_error(load_probe("default")), abs=0.02
    )


SLOW_PROMPTS = replace(UNEVEN, prefill_token=1e-3)


def alternating(periods: int = 4, seed: int = 0) -> Workload:
    """Return prompts with short answers for 30 seconds, then short prompts with long answers, and so on."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 30.0 * periods, 60 * periods))
    heavy = (times // 30).astype(int) % 2 == 0
    return requests([(900, 4) if each else (30, 160) for each in heavy], times.tolist())


@pytest.mark.parametrize("admission", ["prompt", "reserve"])
def test_switching_pools_serve_every_request_on_drained_engines(admission: str) -> None:
    workload, pools = alternating(), Pools(2, 2, KvLink(1e-3, 0.01), switching=Switching(2.0, 8.0))
    engines = with_kv_size(cost=SLOW_PROMPTS, engines=4, seqs=4, blocks=300, admission=admission)
    first, again, readable = (
        disaggregated(workload, engines, pools, router="lengthwise", predictor="oracle", accelerate=on)
        for on in (True, True, False)
    )
    assert first.finished_s.tobytes() == again.finished_s.tobytes() == readable.finished_s.tobytes()
    assert not np.isnan(first.finished_s).any()
    over = first.handover
    assert over is not None
    assert {move.role for move in over.moves} == {"prefill", "decode"}
    assert [*over.moves] == sorted(over.moves, key=lambda move: move.at_s)
    for number in range(4):
        prompts, answers = np.flatnonzero(first.engine == number), np.flatnonzero(over.engine == number)
        roles = [(first.started_s[row], first.first_token_s[row], "prefill") for row in prompts]
        roles += [(over.started[row], first.finished_s[row], "decode") for row in answers]
        changes = [(move.at_s, move.role) for move in over.moves if move.engine == number]
        for start, end, role in roles:
            known = [to for at, to in changes if at <= start]
            assert role == (known[-1] if known else "prefill" if number < 2 else "decode")
            assert not any(start < at < end for at, _ in changes), "it drains before it joins the other pool"
        assert set(first.engines[number].admissions.tolist()) == {*prompts.tolist(), *answers.tolist()}


def test_pools_that_are_never_looked_at_are_fixed_ones() -> None:
    workload, pools = shared_prefixes(), Pools(2, 2)
    fixed = disaggregated(workload, small(), pools, router="lengthwise")
    rare = disaggregated(workload, small(), replace(pools, switching=Switching(1e6)), router="lengthwise")
    assert rare.finished_s.tobytes() == fixed.finished_s.tobytes()
    assert rare.handover is not None
    assert not rare.handover.moves


def test_pools_leave_a_wrong_start() -> None:
    workload = alternating(1)
    engines = with_kv_size(cost=SLOW_PROMPTS, engines=4, seqs=4, blocks=300)
    fixed, switching = (
        disaggregated(workload, engines, Pools(1, 3, switching=given), predictor="oracle")
        for given in (None, Switching(2.0, 8.0))
    )
    assert switching.summary.e2e_s.mean < fixed.summary.e2e_s.mean


def test_a_request_that_fits_nowhere_ends_no_switching_run() -> None:
    engines = with_kv_size(cost=UNEVEN, engines=2, blocks=8)
    workload = requests([(10, 5), (10, 400), (20, 1)], [0.0, 1.0, 2.0])
    split = disaggregated(workload, engines, Pools(1, 1, switching=Switching()))
    assert np.isnan(split.finished_s).tolist() == [False, True, False]


def test_different_engines_cannot_change_pools() -> None:
    two = Fleet.parse("1*llama-3-8b@a100,1*llama-3-8b@h100")
    with pytest.raises(InputError, match="cannot change pools"):
        disaggregated(requests([(10, 5)]), two, Pools(1, 1, switching=Switching()))
    with pytest.raises(InputError, match="period_s"):
        Switching(0.0)
