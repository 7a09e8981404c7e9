from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.simulator import ENGINES, Fleet
from tests.simulator.builders import TICK, UNEVEN, engine


@pytest.mark.parametrize(
    ("name", "prefill_ms", "decode_ms"),
    [
        ("llama-3-8b@a100", 7.032 + 0.04863 * 1000 + 2.147e-6 * 1000**2, 10.71 + 0.02670 * 16 + 8.054e-5 * 20_000),
        ("llama-3-8b@h100", 4.032 + 0.01446 * 1000 + 9.224e-7 * 1000**2, 5.969 + 0.006894 * 16 + 4.1e-5 * 20_000),
    ],
)
def test_known_engines_follow_their_fits(name: str, prefill_ms: float, decode_ms: float) -> None:
    cost = ENGINES[name].cost
    assert cost.step_s(1000, 1000**2, 0, 0) * 1e3 == pytest.approx(prefill_ms)
    assert cost.step_s(0, 0, 16, 20_000) * 1e3 == pytest.approx(decode_ms)


def test_a_mixed_step_reads_the_weights_once() -> None:
    mixed = UNEVEN.step_s(100, 100**2, 8, 1000)
    apart = UNEVEN.step_s(100, 100**2, 0, 0) + UNEVEN.step_s(0, 0, 8, 1000)
    assert mixed == pytest.approx(apart - UNEVEN.prefill_base)


def test_chunks_of_a_prompt_add_up_to_the_whole() -> None:
    whole = UNEVEN.step_s(300, 300**2, 0, 0) - UNEVEN.prefill_base
    chunks = [(100, 100**2), (200, 300**2 - 100**2)]
    assert sum(UNEVEN.step_s(n, q, 0, 0) - UNEVEN.prefill_base for n, q in chunks) == pytest.approx(whole)


@given(st.floats(0, 1e6), st.integers(0, 50), st.integers(1, 64), st.integers(1, 10**6), st.floats(0, 1))
def test_a_run_of_decode_steps_is_the_steps_one_by_one(
    now: float, steps: int, decodes: int, kv_tokens: int, ahead: float
) -> None:
    until = now + ahead
    ended, done = UNEVEN.decode_run(now, until, steps, decodes, kv_tokens)
    taken = 0
    while taken < steps and now < until:
        now += UNEVEN.step_s(0, 0, decodes, kv_tokens + taken * decodes)
        taken += 1
    assert (ended, done) == (now, taken)


def test_kv_memory_is_what_the_weights_leave_of_nine_tenths() -> None:
    expected = (80 * 2**30 * 0.9 - 16.06e9) / 131_072
    for spec in ENGINES.values():
        assert spec.kv_tokens == pytest.approx(expected, rel=1e-4)


def test_a_fleet_is_counts_of_engines() -> None:
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
    ("text", "says"),
    [
        ("1*llama-3-8b@a10", "did you mean llama-3-8b@a100"),
        ("gpt", "known are"),
        ("", "COUNT"),
        ("0*llama-3-8b@a100", "COUNT"),
        ("-1*llama-3-8b@a100", "COUNT"),
        ("two*llama-3-8b@a100", "COUNT"),
        ("1*llama-3-8b@a100,", "COUNT"),
        ("99999*llama-3-8b@a100", "more than"),
    ],
)
def test_a_bad_fleet_says_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Fleet.parse(text)


@pytest.mark.parametrize("limits", [{"seqs": 0}, {"budget": 0}, {"blocks": 0}, {"seqs": 9, "budget": 8}])
def test_an_impossible_engine_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InputError, match="tiny"):
        engine(TICK, **limits)


def test_a_fleet_needs_an_engine() -> None:
    with pytest.raises(InputError, match="without engines"):
        Fleet(())
