"""One engine, computed by hand: every step takes one second, so that times count steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import EngineSpec, Fleet, Outcome, simulate
from lengthwise.workloads import Workload
from tests.simulator.builders import TICK, UNEVEN, engine, fleet, requests


def serve(spec: EngineSpec, workload: Workload, policy: str = "fcfs", **options: Any) -> Outcome:
    return simulate(workload, Fleet((spec,)), policy, **{"predictor": "oracle", **options})


def admissions(outcome: Outcome) -> list[int]:
    return [int(row) for row in outcome.engines[0].admissions]


def test_a_prompt_is_computed_in_chunks_after_the_running_requests() -> None:
    # Steps: 4 of a; 2 of a and 2 of b; a's second token and b's last prompt token.
    outcome = serve(engine(seqs=2, budget=4), requests([(6, 2), (3, 1)]))
    assert outcome.started_s.tolist() == [0.0, 1.0]
    assert outcome.first_token_s.tolist() == [2.0, 3.0]  # at the end of the step that completes the prompt
    assert outcome.finished_s.tolist() == [3.0, 3.0]
    assert outcome.engines[0].steps == 3


def test_a_free_slot_is_filled_in_the_next_step() -> None:
    outcome = serve(engine(seqs=1), requests([(2, 2), (2, 1)]))
    assert outcome.started_s.tolist() == [0.0, 2.0]
    assert outcome.finished_s.tolist() == [2.0, 3.0]


def test_the_policy_orders_waiting_requests() -> None:
    assert admissions(serve(engine(seqs=1), requests([(2, 9), (2, 1), (2, 4)]), "sjf")) == [1, 2, 0]


def test_a_preempted_request_keeps_its_tokens_and_recomputes_their_kv() -> None:
    # Four blocks of two tokens: both prompts fit, both answers do not. In the third step a needs a third block, and b,
    # the last admitted, is preempted; it needs three blocks for its 3 + 2 tokens, so it waits until a has finished.
    outcome = serve(engine(blocks=4, block_size=2), requests([(3, 5), (3, 5)]))
    assert outcome.first_token_s.tolist() == [1.0, 1.0]
    assert outcome.finished_s.tolist() == [5.0, 8.0]
    assert outcome.preemptions.tolist() == [0, 1]
    assert admissions(outcome) == [0, 1, 1]


def test_a_preempted_request_reuses_its_blocks_in_the_prefix_cache() -> None:
    # b is preempted with two full blocks, and finds one of them again: its tokens are computed in fewer steps.
    limits: dict[str, Any] = {"blocks": 6, "block_size": 2, "seqs": 2, "budget": 2}
    workload = requests([(4, 7), (4, 7)])
    without = serve(engine(**limits), workload)
    cached = serve(engine(**limits, caching=True), workload)
    assert without.preemptions.tolist() == cached.preemptions.tolist() == [0, 1]
    assert cached.finished_s[1] < without.finished_s[1]


def test_no_request_is_admitted_in_a_step_that_preempts() -> None:
    # c is short enough to be admitted in step 3, when b is preempted for a, but starts in step 4.
    outcome = serve(engine(blocks=4, block_size=2, seqs=2), requests([(3, 5), (3, 4), (1, 1)], [0.0, 0.0, 1.0]), "sjf")
    assert outcome.preemptions.tolist() == [1, 0, 0]
    assert outcome.started_s[2] == 3.0


def test_a_preempted_request_waits_before_requests_of_equal_key() -> None:
    assert admissions(serve(engine(blocks=4, block_size=2, seqs=2), requests([(3, 5), (3, 5), (1, 1)]))) == [0, 1, 1, 2]


def test_the_policys_victim_is_preempted_though_it_arrived_first() -> None:
    # sjf admits b first. In the third step b needs a third block, and a has more tokens remaining.
    outcome = serve(engine(blocks=4, block_size=2), requests([(3, 5), (3, 3)]), "sjf")
    assert outcome.finished_s.tolist() == [6.0, 3.0]
    assert outcome.preemptions.tolist() == [1, 0]


def test_a_prompt_waits_until_the_whole_prompt_fits_even_if_its_first_chunk_would() -> None:
    outcome = serve(engine(budget=8, blocks=4, block_size=4), requests([(4, 3), (13, 1)]))
    assert outcome.started_s.tolist() == [0.0, 3.0]
    assert outcome.preemptions.tolist() == [0, 0]


def test_a_request_that_does_not_fit_is_not_overtaken() -> None:
    assert admissions(serve(engine(blocks=4, block_size=4), requests([(8, 3), (12, 1), (1, 1)]))) == [0, 1, 2]


@pytest.mark.parametrize(("prompt", "answer", "fits"), [(9, 8, True), (9, 9, False), (30, 1, False)])
def test_a_request_that_can_never_fit_is_refused_and_counted(prompt: int, answer: int, fits: bool) -> None:
    # 16 tokens of KV memory; the last token of an answer is never computed, so it needs no KV memory.
    outcome = serve(engine(blocks=4, block_size=4), requests([(prompt, answer), (1, 1)]))
    assert outcome.summary.refused == (0 if fits else 1)
    assert np.isnan(outcome.finished_s[0]) == (not fits)


def test_a_request_beyond_the_context_is_refused() -> None:
    assert engine(context=10).can_hold([6, 7], [4, 4]).tolist() == [True, False]


def test_equal_prefixes_are_computed_once() -> None:
    # 8 of 9 tokens are the same: b computes one, and finishes a step before c, which shares nothing.
    hashes = [[1, 2], [1, 2], [3, 4]]
    workload = requests([(9, 1)] * 3, [0.0, 5.0, 5.0], blocks=hashes, block_size=4)
    outcome = serve(engine(budget=9, caching=True), workload)
    assert outcome.cached_tokens.tolist() == [0, 8, 0]
    assert outcome.finished_s.tolist() == [1.0, 6.0, 7.0]
    assert serve(engine(budget=9), workload).cached_tokens.tolist() == [0, 0, 0]


def test_the_last_block_of_a_fully_cached_prompt_is_recomputed() -> None:
    workload = requests([(8, 1), (8, 1)], [0.0, 5.0], blocks=[[1, 2], [1, 2]], block_size=4)
    assert serve(engine(caching=True), workload).cached_tokens.tolist() == [0, 4]


def test_a_prefix_is_shared_within_the_step_that_computes_it() -> None:
    workload = requests([(9, 2), (9, 2)], blocks=[[1, 2], [1, 2]], block_size=4)
    assert serve(engine(caching=True), workload).cached_tokens.tolist() == [0, 8]


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    # Five blocks of four: two for each of the first prefixes, one for the last tokens. The first prefix is used again,
    # so a third one takes the blocks of the second.
    hashes = [[10, 11], [20, 21], [10, 11], [30, 31], [10, 11], [20, 21]]
    workload = requests([(9, 1)] * 6, [0.0, 5.0, 10.0, 15.0, 20.0, 25.0], blocks=hashes, block_size=4)
    assert serve(engine(blocks=5, caching=True), workload).cached_tokens.tolist() == [0, 0, 8, 0, 8, 0]


def test_hashes_may_cover_more_or_fewer_tokens_than_an_engine_block() -> None:
    workload = requests([(17, 1), (17, 1)], [0.0, 5.0], blocks=[[1, 2], [1, 3]], block_size=8)
    assert serve(engine(caching=True, block_size=2), workload).cached_tokens.tolist() == [0, 8]
    workload = requests([(17, 1), (17, 1)], [0.0, 5.0], blocks=[[1, 2, 3, 4], [1, 2, 3, 5]], block_size=4)
    assert serve(engine(caching=True, block_size=8), workload).cached_tokens.tolist() == [0, 8]


def test_kv_use_is_measured() -> None:
    outcome = serve(engine(blocks=10, block_size=4), requests([(4, 5)]))
    assert outcome.engines[0].kv_peak == pytest.approx(2 / 10)  # 4 + 5 tokens, the last of them never computed
    # One block in the first step, two in the other four; where steps are skipped, their ends are averaged.
    assert outcome.engines[0].kv_mean == pytest.approx((1 + 4 * 2) / 5 / 10, rel=0.25)
    assert outcome.engines[0].busy_s == 5.0


def test_a_timeline_covers_the_whole_run() -> None:
    workload = requests([(4, 40)] * 200, [float(i) for i in range(200)])
    line = serve(engine(seqs=2), workload).engines[0].timeline
    assert len(line.time) <= 1024
    assert (np.diff(line.time) > 0).all()
    assert line.time[-1] > 1000.0  # 200 requests of 40 steps, two at a time
    assert line.running.max() == 2
    assert line.waiting.max() > 100
    assert 0.0 < line.kv_use.max() <= 1.0


def test_each_admission_takes_decision_s() -> None:
    # Two admissions in the first step, one in the third.
    outcome = serve(engine(seqs=2), requests([(2, 2), (2, 2), (2, 1)]), decision_s=0.125)
    assert outcome.finished_s.tolist() == [2.25, 2.25, 3.375]


def test_a_late_prediction_counts_from_its_arrival() -> None:
    # One slot. b and c arrive while a runs; without predictions their keys are equal and b is first. c is shorter.
    workload = requests([(2, 4), (2, 9), (2, 2)], [0.0, 0.5, 0.5])
    assert admissions(serve(engine(seqs=1), workload, "sjf")) == [0, 2, 1]
    assert admissions(serve(engine(seqs=1), workload, "sjf", prediction_delay_s=3.0)) == [0, 2, 1]
    assert admissions(serve(engine(seqs=1), workload, "sjf", prediction_delay_s=4.0)) == [0, 1, 2]


def test_a_preemptive_policy_preempts_a_running_request_for_a_shorter_one() -> None:
    # a has 9 of 10 tokens left when b arrives with 2. b runs, then a recomputes its prompt and token and continues.
    outcome = serve(engine(seqs=1), requests([(2, 10), (2, 2)], [0.0, 0.5]), "srpt:c=1")
    assert outcome.finished_s.tolist() == [12.0, 3.0]
    assert outcome.preemptions.tolist() == [1, 0]
    assert admissions(outcome) == [0, 1, 0]


def test_peak_admission_waits_until_the_predicted_peak_fits() -> None:
    # 12 tokens. a: 2 + 6, b: 2 + 6. Together they would need 16 at the end; b waits until a
    # will free its memory in time.
    workload = requests([(2, 6), (2, 6)])
    assert serve(engine(blocks=12, block_size=1), workload).preemptions.sum() == 1
    peak = serve(engine(blocks=12, block_size=1, admission="peak"), workload)
    assert peak.preemptions.sum() == 0
    assert 0.0 < peak.started_s[1] < peak.finished_s[0]


def test_a_reservation_holds_prompt_and_predicted_answer() -> None:
    workload = requests([(2, 6), (2, 6)])
    reserved = serve(engine(blocks=12, block_size=1, admission="reserve"), workload)
    assert reserved.started_s[1] == reserved.finished_s[0]  # 7 + 7 tokens do not fit together
    both = serve(engine(blocks=16, block_size=1, admission="reserve"), workload)
    assert both.started_s.tolist() == [0.0, 0.0]


def test_a_request_that_outgrows_its_reservation_is_preempted_and_its_reservation_doubled() -> None:
    # The wide prior's median is far below 2,000 tokens; memory would hold both to the end.
    workload = requests([(2, 2000), (2, 2000)])
    spec = engine(blocks=5000, block_size=1, admission="reserve", admission_quantile=0.5)
    outcome = serve(spec, workload, predictor="none")
    assert outcome.preemptions.sum() > 0
    assert outcome.summary.requests == 2


def test_a_request_too_long_for_32_bit_counts_is_an_error() -> None:
    with pytest.raises(InputError, match="row 2"):
        simulate(requests([(1, 1), (2**31, 1)]), fleet())


def test_engine_blocks_that_do_not_match_the_hashes_are_refused() -> None:
    with pytest.raises(InputError, match="block_size"):
        simulate(requests([(9, 1)], blocks=[[1]], block_size=6), fleet(caching=True))


def test_each_engine_has_its_own_cost_model() -> None:
    fast, slow = engine(UNEVEN), engine(TICK)
    outcome = simulate(requests([(2, 2), (2, 2)]), Fleet((fast, slow)))
    assert outcome.finished_s[0] == UNEVEN.step_s([(0, 2)]) + UNEVEN.step_s([], [3])
    assert outcome.finished_s[1] == 2.0
