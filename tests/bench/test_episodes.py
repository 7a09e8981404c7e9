from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.bench.episodes import (
    FCFS,
    INVERTED,
    ORACLE,
    Arm,
    Kind,
    TrafficPlan,
    arms_of,
    busiest_stretch,
    declared_lengths,
    draw,
    load_prompts,
    turns,
)
from lengthwise.errors import InputError
from lengthwise.workloads import Workload
from lengthwise.workloads.formats import write_workload

ARMS = (Arm(FCFS), Arm("sjf", "fast"), Arm("tie", "fast"))


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traffic") / "w.parquet"
    columns = {
        "arrival_s": np.arange(20.0),
        "input_tokens": np.full(20, 5),
        "output_tokens": np.arange(1, 21),
        "prompt": [f"prompt {number}" for number in range(20)],
    }
    write_workload(Workload.from_table(columns, name="w"), path)
    return str(path)


@given(
    blocks=st.integers(1, 6), kinds=st.lists(st.sampled_from(["burst", "trace", "steady:0.7"]), min_size=1, unique=True)
)
def test_every_arm_runs_once_in_a_block_and_the_next_block_is_reversed(blocks: int, kinds: list[str]) -> None:
    plan = list(turns([Kind.of(name) for name in kinds], ARMS, blocks))
    assert len(plan) == blocks * len(kinds)
    for block in plan:
        expected = ARMS if block[0].block % 2 == 0 else tuple(reversed(ARMS))
        assert tuple(turn.arm for turn in block) == expected
        assert len({(turn.kind, turn.block) for turn in block}) == 1


def test_fcfs_is_always_the_first_arm_and_uses_no_predictor() -> None:
    assert arms_of(["sjf", "fcfs"], ["fast", ORACLE], noise=False) == (
        Arm(FCFS), Arm("sjf", "fast"), Arm("sjf", ORACLE),
    )  # fmt: skip
    assert arms_of(["fcfs"], ["fast"], noise=True) == (Arm(FCFS), Arm(FCFS, copy=1))


@pytest.mark.parametrize(
    ("policies", "predictors"), [(["fcfs"], ["fast"]), (["nonsense"], ["fast"]), (["sjf"], ["nonsense"])]
)
def test_arms_that_cannot_be_measured_are_refused(policies: list[str], predictors: list[str]) -> None:
    with pytest.raises(InputError):
        arms_of(policies, predictors, noise=False)


def test_inverted_lengths_call_the_longest_the_shortest_about_the_median() -> None:
    lengths, cap = np.array([10, 40, 20, 80, 2_000]), 100
    _, none, inverted = arms_of(["lengthwise"], ["none", INVERTED], noise=False)
    assert [arm.label for arm in (none, inverted)] == ["lengthwise", "lengthwise, inverted lengths"]
    told = declared_lengths(inverted, lengths, cap)
    assert told is not None
    assert told.tolist() == [100, 40, 80, 20, 1]
    exact = declared_lengths(Arm("sjf", ORACLE), lengths, cap)
    assert exact is not None
    assert exact.tolist() == [10, 40, 20, 80, 100]
    assert declared_lengths(none, lengths, cap) is None


def test_a_predictor_may_be_combined_with_a_probe() -> None:
    plain, packaged, file = Arm("sjf", "default"), Arm("srpt", "default+probe"), Arm("srpt", "fast+probe:a/paper.lw")
    assert [arm.prompt_predictor for arm in (plain, packaged, file)] == ["default", "default", "fast"]
    assert [arm.probe for arm in (plain, packaged, file)] == [None, "default", "a/paper.lw"]
    assert [arm.label for arm in (packaged, file)] == ["srpt, default + probe", "srpt, fast + paper"]
    assert arms_of(["srpt"], ["fast+probe"], noise=False)[1] == Arm("srpt", "fast+probe")
    with pytest.raises(InputError, match="is not a file"):
        arms_of(["srpt"], ["fast+probe:nothing.lw"], noise=False)


@pytest.mark.parametrize("text", ["", "bursts", "steady", "steady:x", "steady:0", "steady:-1", "burst:2"])
def test_an_unknown_kind_of_episode_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Kind.of(text)


def test_a_block_is_the_same_for_every_arm_and_another_block_is_not(workload: str) -> None:
    plan = TrafficPlan(llm=None, workload=workload, cap=15)
    prompts = load_prompts(plan)
    first, again, other = (draw(prompts, plan, Kind.of("burst"), block, n=30, capacity=2.0) for block in (0, 0, 1))
    assert first.workload.table.equals(again.workload.table)
    assert not first.workload.table.equals(other.workload.table)
    assert int(first.workload.output_tokens.max()) == 15, "lengths end at the cap"
    assert set(first.picks.tolist()) == set(range(20)), "no prompt is repeated before all were drawn"


def test_own_answers_have_a_seed_each_and_the_cap_as_their_limit(workload: str) -> None:
    plan = TrafficPlan(llm=None, workload=workload, cap=15, own_answers=True)
    prompts, kind = load_prompts(plan), Kind.of("burst")
    first, again, other = (draw(prompts, plan, kind, block, n=30, capacity=5.0) for block in (0, 0, 1))
    assert set(first.workload.output_tokens.tolist()) == {15}
    assert first.seeds.tolist() == again.seeds.tolist()
    assert len({*first.seeds.tolist(), *other.seeds.tolist()}) == 60


@pytest.mark.parametrize(("kind", "load"), [("burst", 2.0), ("steady:0.7", 0.7)])
def test_arrivals_have_the_rate_of_their_kind(workload: str, kind: str, load: float) -> None:
    plan = TrafficPlan(llm=None, workload=workload)
    drawn = draw(load_prompts(plan), plan, Kind.of(kind), 0, n=4000, capacity=5.0)
    rate = 3999 / float(drawn.workload.arrival_s[-1] - drawn.workload.arrival_s[0])
    assert rate == pytest.approx(5.0 * load, rel=0.1)


def test_a_backlog_arrives_at_once_and_a_trace_at_its_busiest(workload: str) -> None:
    plan = TrafficPlan(llm=None, workload=workload)
    prompts = load_prompts(plan)
    assert not draw(prompts, plan, Kind.of("backlog"), 0, n=9, capacity=5.0).workload.arrival_s.any()
    trace = draw(prompts, plan, Kind.of("trace"), 0, n=200, capacity=5.0).workload.arrival_s
    assert 199 / float(trace[-1]) > 0.7 * 5.0, "busier than the trace is on average"


@given(st.lists(st.floats(0.01, 10.0), min_size=3, max_size=60), st.integers(2, 20))
def test_the_busiest_stretch_is_the_shortest(gaps: list[float], n: int) -> None:
    arrivals = np.cumsum(gaps)
    if n > len(arrivals):
        with pytest.raises(InputError):
            busiest_stretch(arrivals, n)
        return
    found = busiest_stretch(arrivals, n)
    rate = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
    spans = [arrivals[first + n - 1] - arrivals[first] for first in range(len(arrivals) - n + 1)]
    assert len(found) == n
    assert found[-1] / rate == pytest.approx(min(spans))


def test_packaged_prompts_are_used_without_the_full_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    prompts = load_prompts(TrafficPlan())
    assert prompts.origin == "packaged sample"
    assert len(prompts.texts) == len(prompts.lengths) == len(prompts.tokens) > 0


def test_a_workload_without_prompts_and_an_unknown_llm_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.parquet"
    write_workload(Workload.from_table({"arrival_s": [0.0], "input_tokens": [1], "output_tokens": [1]}, name="w"), path)
    with pytest.raises(InputError, match="prompt"):
        load_prompts(TrafficPlan(llm=None, workload=str(path)))
    with pytest.raises(InputError):
        load_prompts(TrafficPlan(llm="unknown/llm"))
