"""Steps of a steady length: each takes what the cost model says, late ones are made up for, what is between counts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.engines.pace import Pace, PaceLog, Pacer, pace_cost, read_kept
from lengthwise.errors import InputError
from lengthwise.simulator.costs import StepCost

COST = StepCost(0.02, 0.03, 1e-4, 1e-8, 2e-3, 1e-6)
PROMPT, DECODES = [(0, 100)], [(100, 1), (50, 1)]


class Machine:
    """Its clock moves when it works, and when it sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def step(self, pacer: Pacer, work_s: float, spans: list[tuple[int, int]]) -> float:
        """One step; when it ended."""
        pacer.begin(goes_on=any(before for before, _ in spans))
        self.now += work_s
        pacer.end(spans)
        return self.now


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def pacer(machine: Machine) -> Pacer:
    return Pacer(COST, machine.clock, machine.sleep)


@pytest.mark.parametrize("spans", [PROMPT, DECODES, PROMPT + DECODES])
def test_a_step_takes_its_simulated_time(machine: Machine, pacer: Pacer, spans: list[tuple[int, int]]) -> None:
    chunks = [(begin, begin + new) for begin, new in spans if new > 1]
    contexts = [begin + new for begin, new in spans if new == 1]
    began = machine.now
    assert machine.step(pacer, 0.001, spans) - began == pytest.approx(COST.step_s(chunks, contexts))


def test_the_delay_of_a_late_step_is_recovered_and_counted(machine: Machine, pacer: Pacer) -> None:
    wanted = COST.step_s((), [101, 51])
    began = machine.now
    machine.step(pacer, wanted + 0.01, DECODES)
    assert machine.now - began == pytest.approx(wanted + 0.01)
    machine.step(pacer, 0.001, DECODES)
    assert machine.now - began == pytest.approx(2 * wanted)
    kept = pacer.kept
    assert (kept.steps, kept.late_steps) == (2, 1)
    assert kept.seconds == pytest.approx(2 * wanted)
    assert kept.most_behind_s == pytest.approx(0.01)
    assert kept.behind_s == pytest.approx(0.005)


def test_work_between_steps_is_not_recovered(machine: Machine, pacer: Pacer) -> None:
    wanted = COST.step_s((), [101, 51])
    began = machine.now
    machine.step(pacer, wanted + 0.01, DECODES)
    machine.now += 0.005  # scheduling
    machine.step(pacer, 0.001, DECODES)
    assert machine.now - began == pytest.approx(2 * wanted + 0.005)


def test_no_delay_remains_after_idle_time(machine: Machine, pacer: Pacer) -> None:
    wanted = COST.step_s((), [101, 51])
    machine.step(pacer, wanted + 1.0, DECODES)
    machine.now += 3.0
    began = machine.now
    assert machine.step(pacer, 0.001, PROMPT) - began == pytest.approx(COST.step_s([(0, 100)], ()))


def test_a_delay_remains_after_a_stall_between_steps(machine: Machine, pacer: Pacer) -> None:
    wanted = COST.step_s((), [101, 51])
    began = machine.now
    machine.step(pacer, wanted + 0.01, DECODES)
    machine.now += 3.0
    machine.step(pacer, 0.001, DECODES)
    assert machine.now - began == pytest.approx(2 * wanted + 3.0)


def test_a_step_without_tokens_takes_no_time(machine: Machine, pacer: Pacer) -> None:
    began = machine.now
    assert machine.step(pacer, 0.0, []) == began
    assert pacer.kept.steps == 0


@given(st.lists(st.tuples(st.floats(0, 0.08), st.floats(0, 0.5)), min_size=1, max_size=60))
def test_paced_steps_take_their_time_in_the_long_run_and_late_ones_have_a_cause(
    work: list[tuple[float, float]],
) -> None:
    """The time of all steps is at least what they were to take, and more only by what the last is behind."""
    machine = Machine()
    pacer = Pacer(COST, machine.clock, machine.sleep)
    began, between = machine.now, 0.0
    for work_s, pause_s in work:
        machine.step(pacer, work_s, DECODES)
        machine.now += pause_s
        between += pause_s
    taken = machine.now - began - between
    assert taken >= pacer.kept.seconds - 1e-9
    assert taken <= pacer.kept.seconds + pacer.kept.most_behind_s + 1e-9
    assert pacer.kept.most_behind_s <= sum(each for each, _ in work)


def test_the_accuracy_of_a_pace_is_written_and_read(tmp_path: Path, machine: Machine, pacer: Pacer) -> None:
    path = tmp_path / "pace.json"
    assert read_kept(path) is None
    machine.step(pacer, 0.001, DECODES)
    PaceLog(path).update(pacer)
    assert read_kept(path) == pacer.kept
    path.write_text("{")
    assert read_kept(path) is None


def test_a_pace_is_passed_in_the_engines_configuration(tmp_path: Path) -> None:
    options = Pace(COST, tmp_path / "pace.json").options()
    assert pace_cost(options["pace"]) == COST
    assert options["pace_log"] == str(tmp_path / "pace.json")
    assert Pace(COST).options()["pace_log"] is None


@pytest.mark.parametrize("wrong", [None, {}, {"decode": 1}, {**asdict(COST), "decode": "fast"}, {"pace": 1}])
def test_an_invalid_pace_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="cannot read pace"):
        pace_cost(wrong)


def test_a_pace_of_zero_time_is_refused() -> None:
    with pytest.raises(InputError):
        pace_cost({**asdict(COST), "decode_base": 0.0})
