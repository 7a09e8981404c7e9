from __future__ import annotations

import numpy as np

from experiments.preble.traffic import LENGTHS, VARIED, React, Shared, castillo_prompts
from lengthwise.workloads import DiscreteLengths, Workload


def drawn(source: React | Shared, seed: int = 0) -> Workload:
    return source.draws(own_arrivals=False, slots=0)(seed)


def test_react_has_ten_workloads_in_random_order_and_nothing_to_read() -> None:
    workload = drawn(React(VARIED, 200))
    tenants = workload.table["tenant"].to_pylist()
    assert sorted(set(tenants)) == sorted(f"workload-{n}" for n in range(10))
    assert tenants[:20] != [f"workload-{n % 10}" for n in range(20)]
    assert workload.table["prompt"].null_count == 200
    assert set(workload.table["max_tokens"].to_pylist()) == {300}
    first, *others = (workload.blocks(row) for row in range(200) if tenants[row] == tenants[0])
    shared = [int(np.sum(first[: len(each)] == each[: len(first)])) for each in others]
    assert set(shared) == {1897 // 64}
    assert drawn(React(VARIED, 200)) == workload != drawn(React(VARIED, 200), seed=1)


def test_lengths_have_one_mean_and_ever_more_variance() -> None:
    known = [DiscreteLengths.parse(lengths) for lengths in LENGTHS]
    assert np.ptp([each.mean for each in known]) < 1
    assert known[0].std < known[1].std < known[2].std
    assert LENGTHS[-1] == VARIED


def test_castillo_stands_behind_ten_prefixes_with_test_prompts_only() -> None:
    workload = drawn(Shared("llama-3.1-8b", 200))
    prompts = workload.table["prompt"].to_pylist()
    heads, tails = zip(*((prompt[: 4 * 512], prompt[4 * 512 :]) for prompt in prompts), strict=True)
    assert len(set(heads)) == 10
    assert heads.count(max(set(heads), key=heads.count)) > 200 / 10, "some are asked for more often"
    known = castillo_prompts().where(llm="llama-3.1-8b")
    assert set(known.table["split"].to_pylist()) == {"test"}
    assert set(tails) <= set(known.table["prompt"].to_pylist())
