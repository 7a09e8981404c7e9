from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import ENGINES, Fleet, StepCost, find_engine
from lengthwise.simulator.fleet import engine_yaml
from tests.simulator.builders import TICK, UNEVEN, engine


@pytest.mark.parametrize(
    ("name", "prefill_ms", "decode_ms"),
    [
        ("llama-3-8b@a100", 7.032 + 0.04863 * 1000 + 2.147e-6 * 1000**2, 10.71 + 0.02670 * 16 + 8.054e-5 * 20_000),
        ("llama-3-8b@h100", 4.032 + 0.01446 * 1000 + 9.224e-7 * 1000**2, 5.969 + 0.006894 * 16 + 4.1e-5 * 20_000),
        # Preble: linear layers by the tokens of the batch, attention by the tokens of all contexts.
        (
            "mistral-7b@a6000",
            (4.209777 + 0.10842571 * 1000 + 0.32) / 0.9,
            (22 + 1.86e-4 * 20_000 + 0.159) / 0.9,
        ),
        ("mistral-7b@a100", (5.505997 + 0.05031337 * 1000) / 0.85, 8.96 / 0.85),
    ],
)
def test_known_engines_follow_their_fits(name: str, prefill_ms: float, decode_ms: float) -> None:
    cost = ENGINES[name].cost
    assert cost.step_s([(0, 1000)]) * 1e3 == pytest.approx(prefill_ms)
    assert cost.step_s([], [1250] * 16) * 1e3 == pytest.approx(decode_ms)


def test_a_larger_batch_takes_no_less_time_than_the_smallest_unlike_prebles_parabola() -> None:
    cost = ENGINES["mistral-7b@a6000"].cost
    least = cost.step_s([(0, 1)])
    assert all(cost.step_s([(0, tokens)]) >= least for tokens in range(1, 1000))
    assert -118 + 1.25 * 380 - 2.56e-3 * 380**2 < 0


def test_the_piecewise_costs_are_those_of_preble() -> None:
    a6000, a100 = ENGINES["mistral-7b@a6000"].cost, ENGINES["mistral-7b@a100"].cost
    assert a6000.step_s([(0, 250)]) * 1e3 == pytest.approx((-118 + 1.25 * 250 - 2.56e-3 * 250**2 + 0.32) / 0.9)
    assert a100.step_s([(0, 100)]) * 1e3 == pytest.approx(10.5 / 0.85)
    # A chunk of e tokens that ends at s, e * s beyond 2^20.
    e, s = 2048, 8192
    long = 1.13e-3 * e + 1.75e-3 * s + 2.19e-6 * e * s
    linear, attention = 4.209777 + 0.10842571 * e, 1.86e-4 * s + 0.159
    assert a6000.step_s([(s - e, s)]) * 1e3 == pytest.approx((linear + attention + long) / 0.9)
    long = 0.123864 - 7.45e-4 * e + 1.72e-3 * s + 1.36e-6 * e * s
    assert a100.step_s([(s - e, s)]) * 1e3 == pytest.approx((5.505997 + 0.05031337 * e + long) / 0.85)


def test_attention_over_short_or_shared_contexts_takes_half() -> None:
    cost = ENGINES["mistral-7b@a6000"].cost
    full, half = 1.86e-4 * 4000 + 0.159, (1.86e-4 * 4000 + 0.159) / 2
    assert cost.step_s([], [2000, 2000]) * 1e3 == pytest.approx((22 + full) / 0.9)
    assert cost.step_s([], [2000, 2000], shared_tokens=1952) * 1e3 == pytest.approx((22 + half) / 0.9)
    assert cost.step_s([], [1000] * 4) * 1e3 == pytest.approx((22 + half) / 0.9)


def test_a_mixed_step_reads_the_weights_once() -> None:
    mixed = UNEVEN.step_s([(0, 100)], [125] * 8)
    separate = UNEVEN.step_s([(0, 100)]) + UNEVEN.step_s([], [125] * 8)
    assert mixed == pytest.approx(separate - UNEVEN.prefill_base)


def test_chunks_of_a_prompt_cost_as_much_as_the_whole() -> None:
    whole = UNEVEN.step_s([(0, 300)]) - UNEVEN.prefill_base
    parts = [UNEVEN.step_s([chunk]) - UNEVEN.prefill_base for chunk in ((0, 100), (100, 300))]
    assert sum(parts) == pytest.approx(whole)


def test_the_roofline_is_close_to_the_fitted_costs() -> None:
    """Published numbers and one set of efficiencies are within 10 % on average of the fits on two GPUs."""
    for gpu in ("a100", "h100"):
        fitted, roofline = ENGINES[f"llama-3-8b@{gpu}"].cost, find_engine(f"llama-3-8b@1x{gpu}").cost
        steps: list[Any] = [([(0, n)], []) for n in (128, 512, 2048, 8192)]
        steps += [([], [context] * batch) for batch in (1, 32, 256) for context in (128, 1024, 4096)]
        errors = [abs(roofline.step_s(*step) / fitted.step_s(*step) - 1) for step in steps]
        assert np.mean(errors) < 0.10
        assert np.max(errors) < 0.30


def test_any_known_llm_and_gpu_make_an_engine_from_published_numbers() -> None:
    one, four = find_engine("llama-3-8b@l40s"), find_engine("llama-3-8b@4xl40s")
    assert four.kv_tokens > 4 * one.kv_tokens
    assert four.cost.step_s([(0, 4096)]) < one.cost.step_s([(0, 4096)])
    with pytest.raises(InputError, match="do not fit"):
        find_engine("llama-3-70b@h100")
    assert find_engine("llama-3-70b@4xh100").kv_tokens > 100_000


def test_kv_memory_is_nine_tenths_of_the_gpu_less_the_weights() -> None:
    expected = (80 * 2**30 * 0.9 - 16.06e9) / 131_072
    for gpu in ("a100", "h100"):
        assert ENGINES[f"llama-3-8b@{gpu}"].kv_tokens == pytest.approx(expected, rel=1e-4)
    assert ENGINES["mistral-7b@a6000"].kv_tokens == 198_516  # as in Preble


_FILE = """
name: mine
cost: {family: linear, prefill_base: 7.0e-3, decode_base: 1.0e-2, prefill_token: 5.0e-5, kv_token: 8.0e-8}
kv_tokens: 1000
max_num_seqs: 16
"""


def test_an_engine_can_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(_FILE)
    fleet = Fleet.parse(f"2*{path}")
    assert [spec.name for spec in fleet.engines] == ["mine", "mine"]
    assert fleet.engines[0].max_num_seqs == 16
    assert fleet.engines[0].cost == StepCost(7e-3, 1e-2, 5e-5, 0.0, 0.0, 8e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("prefill_base: 7.0e-3", "prefill_base: -1"), "cost.prefill_base"),
        (("kv_tokens: 1000", "kv_tokens: many"), "kv_tokens"),
        (("kv_tokens: 1000", "kv_token: 1000"), "kv_token"),
        (("family: linear", "family: cubic"), "cost"),
        (("max_num_seqs: 16", "max_num_seqs: 0"), "max_num_seqs"),
        (("name: mine", "name: [mine"), "YAML"),
    ],
)
def test_an_error_in_an_engine_file_names_the_field(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(_FILE.replace(*change))
    with pytest.raises(InputError, match=message):
        Fleet.parse(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.yaml"):
        Fleet.parse(str(tmp_path / "gone.yaml"))


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(InputError, match="no time"):
        StepCost(0.0, 0.0, 1.0, 0.0, 1.0, 0.0)
    with pytest.raises(InputError, match="kv_token"):
        StepCost(1.0, 1.0, 0.0, 0.0, 0.0, float("nan"))


def test_a_fleet_is_parsed_from_counts_of_engines() -> None:
    fleet = Fleet.parse("2*llama-3-8b@a100, 1*llama-3-8b@h100")
    assert [spec.name for spec in fleet.engines] == ["llama-3-8b@a100", "llama-3-8b@a100", "llama-3-8b@h100"]
    assert str(fleet) == "2*llama-3-8b@a100,1*llama-3-8b@h100"
    assert Fleet.parse(str(fleet)) == fleet
    assert Fleet.parse("llama-3-8b@a100") == Fleet.parse("1*llama-3-8b@a100")
    assert fleet.slots == 256 + 256 + 1024


def test_limits_change_every_engine() -> None:
    fleet = Fleet.parse("2*llama-3-8b@a100").limited_to(max_num_seqs=8, max_num_batched_tokens=512)
    assert {(spec.max_num_seqs, spec.max_num_batched_tokens) for spec in fleet.engines} == {(8, 512)}
    assert fleet.limited_to() == fleet


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1*llama-3-8b@a10", "did you mean llama-3-8b@a100"),
        ("gpt", "MODEL is one of"),
        ("", "COUNT"),
        ("0*llama-3-8b@a100", "COUNT"),
        ("-1*llama-3-8b@a100", "COUNT"),
        ("two*llama-3-8b@a100", "COUNT"),
        ("1*llama-3-8b@a100,", "COUNT"),
        ("99999*llama-3-8b@a100", "more than"),
    ],
)
def test_the_error_of_a_bad_fleet_names_the_valid_form(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Fleet.parse(text)


@pytest.mark.parametrize(
    "limits",
    [
        {"seqs": 0},
        {"budget": 0},
        {"blocks": 0},
        {"seqs": 9, "budget": 8},
        {"admission": "luck"},
        {"admission_quantile": 1.0},
    ],
)
def test_an_impossible_engine_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="tiny"):
        engine(TICK, **limits)


def test_a_fleet_needs_an_engine() -> None:
    with pytest.raises(InputError, match="without engines"):
        Fleet(())


def test_an_engine_file_can_turn_off_chunked_prefill(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(_FILE + "chunked_prefill: false\nmax_model_len: 512\nmax_num_batched_tokens: 512\n")
    assert not Fleet.parse(str(path)).engines[0].chunked_prefill
    path.write_text(_FILE + "chunked_prefill: false\nmax_model_len: 513\nmax_num_batched_tokens: 512\n")
    with pytest.raises(InputError, match="must hold the longest prompt"):
        Fleet.parse(str(path))


def test_a_written_engine_is_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    spec = replace(ENGINES["llama-3-8b@a100"], name="mine", block_size=128, prefix_caching=False)
    path.write_text(engine_yaml(spec))
    assert Fleet.parse(str(path)).engines == (spec,)
    with pytest.raises(InputError, match="Piecewise"):
        engine_yaml(ENGINES["mistral-7b@a100"])
