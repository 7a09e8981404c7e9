from __future__ import annotations

import numpy as np

from experiments.fast_lane import H200, LANES, LASTING, STUDY, WIDE, lane_policy, tables
from experiments.frontier import Gains
from lengthwise.intervals import Ratio
from lengthwise.policies import lengthwise
from lengthwise.simulator import Fleet, predict_workload, simulate
from lengthwise.workloads import castillo_workload, load_castillo

FLEET = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=4)


def test_a_copy_with_the_same_constants_equals_the_policy() -> None:
    requests = castillo_workload(load_castillo(), "llama-3.1-8b", requests=150, rate=4.0, seed=0)
    predictions = predict_workload(requests, "noisy:0.55")
    own, copied, wide = (
        simulate(requests, FLEET, policy, predictor=predictions)
        for policy in ("lengthwise", lane_policy({}), lane_policy(WIDE))
    )
    np.testing.assert_allclose(copied.finished_s, own.finished_s)
    assert not np.allclose(wide.finished_s, own.finished_s)


def test_every_replaced_constant_is_one_of_the_policy_and_keeps_its_value_there() -> None:
    before = {name: getattr(lengthwise, name) for constants in LANES.values() for name in constants}
    assert len(before) == 3
    lane_policy(LANES["60 % of the jobs, half of the work, rounds of 400"])
    assert before == {name: getattr(lengthwise, name) for name in before}


def test_answer_and_table_have_every_place_and_lane() -> None:
    ratio = Ratio(1.2, 1.1, 1.3)
    gain = Gains(ratio, ratio, ratio, ratio, in_time=1.0)
    found = {place: dict.fromkeys(LANES, gain) for place in (H200, LASTING[0])}
    (table,) = tables(found)
    assert len(table.rows) == 2 * len(LANES)
    assert "gains 1.20x instead of 1.20x" in STUDY.output(found).verdict
