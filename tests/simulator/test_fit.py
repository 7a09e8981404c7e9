"""A cost model fitted to steps: exact on exact steps, close to them with stalls, and with their total time."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.simulator import Fleet, StepCost
from lengthwise.simulator.fit import StepTimes, engine_spec, fit_cost, write_fitted
from lengthwise.simulator.step_log import EngineFacts

TRUE = StepCost(0.07, 0.045, 6.0e-4, 4.0e-7, 2.5e-3, 6.0e-6)
FACTS = EngineFacts("stand-in 1", "tiny", 46_464, 128, 2048, 4, 2048, prefix_caching=True, chunked_prefill=False)


def steps(cost: StepCost, n: int = 400, seed: int = 0) -> StepTimes:
    """Steps of all kinds that take exactly the time of the cost model."""
    rng = np.random.default_rng(seed)
    prompts = np.where(rng.random(n) < 0.4, rng.integers(1, 1024, n), 0).astype(float)
    decodes = np.where((rng.random(n) < 0.7) | (prompts == 0), rng.integers(1, 5, n), 0).astype(float)
    context = decodes * rng.integers(10, 1200, n).astype(float)
    made = StepTimes(prompts, prompts**2, decodes, context, np.ones(n))
    return replace(made, seconds=made.at(cost))


COSTS = st.builds(
    StepCost,
    prefill_base=st.floats(1e-4, 0.2),
    decode_base=st.floats(1e-4, 0.2),
    prefill_token=st.floats(0, 1e-3),
    prefill_pair=st.floats(0, 1e-6),
    decode=st.floats(0, 1e-2),
    kv_token=st.floats(0, 1e-5),
)


@settings(max_examples=40)
@given(COSTS)
def test_exact_steps_give_the_exact_cost(cost: StepCost) -> None:
    seen = steps(cost)
    fitted = fit_cost(seen)
    assert list(asdict(fitted.cost).values()) == pytest.approx(list(asdict(cost).values()), rel=1e-5, abs=1e-9)
    assert fitted.raised == pytest.approx(1.0)
    assert fitted.shares[0].p90_error < 1e-6


@settings(max_examples=20)
@given(st.integers(0, 1000))
@example(22)  # stalls made the fit to runs of steps look better
@example(533)
def test_stalls_hardly_change_the_cost_of_a_token(seed: int) -> None:
    seen = steps(TRUE, seed=seed)
    rng = np.random.default_rng(seed)
    noisy = seen.seconds * rng.lognormal(0.0, 0.05, len(seen))
    stalled = rng.random(len(seen)) < 0.08
    took = np.where(stalled, 8.0 * noisy, noisy)
    fitted = fit_cost(replace(seen, seconds=took))
    usual = seen.at(fitted.cost) / fitted.raised / seen.seconds
    assert np.abs(usual - 1.0).max() < 0.2  # 0.18 in the worst of 3,000 seeds
    assert fitted.raised == pytest.approx(took.sum() / noisy.sum(), rel=0.03)  # the share of the stalls


def test_the_fitted_total_time_is_the_measured_one() -> None:
    seen = steps(TRUE)
    rng = np.random.default_rng(1)
    slow = replace(seen, seconds=seen.seconds * rng.lognormal(0.1, 0.4, len(seen)))
    fitted = fit_cost(slow)
    assert slow.at(fitted.cost).sum() == pytest.approx(slow.seconds.sum())
    assert fitted.shares[0].total_error == pytest.approx(0.0, abs=1e-9)
    assert sum(share.steps for share in fitted.shares[1:]) == len(seen)


def test_an_engine_that_logs_a_prompt_with_the_step_before_it_has_the_same_cost() -> None:
    seen = steps(TRUE, n=4000)
    rare = np.arange(len(seen)) % 10 == 5
    seen = replace(seen, prompt_tokens=seen.prompt_tokens * rare, prompt_pairs=seen.prompt_pairs * rare)
    seen = replace(seen, decodes=np.maximum(1.0, seen.decodes))
    exact = seen.at(TRUE)
    early = np.where(seen.prefilling, 0.8 * exact, 0.0)
    shifted = replace(seen, seconds=exact - early + np.roll(early, -1))
    fitted = fit_cost(shifted).cost
    assert fitted.prefill_token == pytest.approx(TRUE.prefill_token, rel=1e-3)
    assert fitted.decode_base == pytest.approx(TRUE.decode_base, rel=1e-3)


def test_a_step_that_stalls_for_a_minute_counts_at_most_ten_times_its_fit() -> None:
    seen = steps(TRUE)
    stalled = seen.seconds.copy()
    stalled[3] = 60.0
    fitted = fit_cost(replace(seen, seconds=stalled))
    assert fitted.raised == pytest.approx(1.0 + 9.0 * seen.seconds[3] / seen.seconds.sum(), rel=1e-3)


def test_a_base_without_steps_of_its_own_is_the_other_base() -> None:
    seen = steps(TRUE)
    decoding = np.flatnonzero(seen.decoding)
    only = StepTimes(*(getattr(seen, name)[decoding] for name in StepTimes.__dataclass_fields__))
    cost = fit_cost(only).cost
    assert cost.prefill_base == pytest.approx(cost.decode_base) == pytest.approx(TRUE.decode_base)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda seen: replace(seen, seconds=np.zeros(len(seen))), "took no time"),
        (lambda seen: replace(seen, decodes=np.zeros(len(seen))), "no step decodes"),
        (lambda seen: replace(seen, prompt_tokens=np.zeros(len(seen))), "no step computes a prompt"),
        (lambda _: steps(TRUE, 5), "5 steps are too few"),
    ],
)
def test_steps_that_do_not_determine_the_cost_are_refused(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(InputError, match=message):
        fit_cost(change(steps(TRUE)))


def test_the_simulator_reads_the_engine_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    write_fitted(path, engine_spec("mine", TRUE, FACTS), "Fitted on this.\nAnd that.")
    assert path.read_text().startswith("# Fitted on this.\n# And that.\nname: mine\n")
    (read,) = Fleet.parse(str(path)).engines
    assert read == engine_spec("mine", TRUE, FACTS)
    assert (read.kv_blocks, read.block_size, read.chunked_prefill, read.max_num_seqs) == (363, 128, False, 4)
