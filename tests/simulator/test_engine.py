"""Schedules small enough to write down: every step takes one second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lengthwise.lengths import Point
from lengthwise.policies import Job, make_policy
from lengthwise.simulator import Engine
from lengthwise.simulator.outcome import Ledger
from tests.simulator.builders import engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lengthwise.simulator import EngineSpec


def loaded(spec: EngineSpec, lengths: Sequence[tuple[int, int]], policy: str = "fcfs") -> tuple[Engine, Ledger]:
    """An engine with everybody waiting at time 0, beliefs true; jobs are called a, b, c, ..."""
    ledger = Ledger(len(lengths))
    host = Engine(spec, make_policy(policy), ledger)
    for row, (prompt, answer) in enumerate(lengths):
        host.submit(Job(chr(ord("a") + row), 0.0, prompt, Point(answer)), row, answer)
    return host, ledger


def schedule(host: Engine) -> list[dict[str, int]]:
    """Tokens computed per job, step by step to the end."""
    steps = []
    while host.busy:
        steps.append({request.job.id: tokens for request, tokens in host.step().scheduled.items()})
    return steps


def test_a_prompt_is_computed_in_chunks_and_the_running_go_first() -> None:
    host, ledger = loaded(engine(seqs=2, budget=4), [(6, 2), (3, 1)])
    assert schedule(host) == [{"a": 4}, {"a": 2, "b": 2}, {"a": 1, "b": 1}]
    assert ledger.started == [0.0, 1.0]
    assert ledger.first_token == [2.0, 3.0]  # at the end of the step that completes the prompt
    assert ledger.finish == [3.0, 3.0]


def test_a_slot_is_filled_in_the_step_after_it_falls_free() -> None:
    host, ledger = loaded(engine(seqs=1), [(2, 2), (2, 1)])
    assert schedule(host) == [{"a": 2}, {"a": 1}, {"b": 2}]
    assert ledger.started == [0.0, 2.0]
    assert ledger.finish == [2.0, 3.0]


def test_the_policy_orders_who_waits() -> None:
    host, ledger = loaded(engine(seqs=1), [(2, 9), (2, 1), (2, 4)], "sjf")
    schedule(host)
    assert ledger.admissions == [(0, 1), (0, 2), (0, 0)]


def test_a_preempted_request_keeps_its_tokens_and_computes_them_again() -> None:
    # Four blocks of two tokens: both prompts fit, both answers do not.
    host, ledger = loaded(engine(blocks=4, block_size=2), [(3, 5), (3, 5)])
    assert schedule(host) == [
        {"a": 3, "b": 3},
        {"a": 1, "b": 1},
        {"a": 1},  # a needs a third block: b, the last admitted, yields
        {"a": 1},  # b needs three blocks for its 3 + 2 tokens, one is free
        {"a": 1},
        {"b": 5},
        {"b": 1},
        {"b": 1},
    ]
    assert ledger.first_token == [1.0, 1.0]
    assert ledger.finish == [5.0, 8.0]
    assert ledger.preemptions == [0, 1]
    assert ledger.admissions == [(0, 0), (0, 1), (0, 1)]
    assert host.kv.free == 4


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    host, _ = loaded(engine(blocks=4, block_size=2, seqs=2), [(3, 5), (3, 4)], "sjf")
    host.step()
    host.submit(Job("c", host.now, 1, Point(1)), 0, 1)
    host.step()  # both slots are taken
    third = host.step()
    assert [request.job.id for request in third.preempted] == ["a"]
    assert (third.admitted, host.kv.free) == ([], 1)  # there was a slot and memory for c
    assert [request.job.id for request in host.step().admitted] == ["c"]


def test_a_preempted_request_keeps_its_place_before_those_who_came_with_it() -> None:
    host, ledger = loaded(engine(blocks=4, block_size=2, seqs=2), [(3, 5), (3, 5), (1, 1)])
    schedule(host)
    assert [row for _, row in ledger.admissions] == [0, 1, 1, 2]


def test_the_policys_victim_yields_though_it_asked_first_and_the_others_go_on() -> None:
    host, ledger = loaded(engine(blocks=4, block_size=2), [(3, 5), (3, 3)], "sjf")
    assert schedule(host) == [
        {"b": 3, "a": 3},
        {"b": 1, "a": 1},
        {"b": 1},  # b needs a third block; a has more to come
        {"a": 5},
        {"a": 1},
        {"a": 1},
    ]
    assert ledger.preemptions == [1, 0]


def test_a_victim_that_had_its_tokens_gives_them_back_to_those_behind() -> None:
    host, _ = loaded(engine(budget=40, blocks=128, block_size=2), [(40, 90)], "sjf")
    host.step()
    host.submit(Job("b", host.now, 4, Point(9)), 0, 9)
    host.step()
    host.submit(Job("c", host.now, 200, Point(2)), 0, 2)
    host.step()
    host.step()
    host.kv.take(host.kv.free)  # memory is now as short as can be
    step = host.step()  # a had its token before b needed a block; c is in the middle of its prompt
    assert [request.job.id for request in step.preempted] == ["a"]
    assert {request.job.id: tokens for request, tokens in step.scheduled.items()} == {"b": 1, "c": 39}


def test_a_prompt_waits_until_all_of_it_fits_though_its_first_chunk_would() -> None:
    host, ledger = loaded(engine(budget=8, blocks=4, block_size=4), [(4, 3), (13, 1)])
    assert schedule(host) == [{"a": 4}, {"a": 1}, {"a": 1}, {"b": 8}, {"b": 5}]
    assert ledger.preemptions == [0, 0]


def test_who_does_not_fit_is_not_overtaken() -> None:
    host, ledger = loaded(engine(blocks=4, block_size=4), [(8, 3), (12, 1), (1, 1)])
    schedule(host)
    assert [row for _, row in ledger.admissions] == [0, 1, 2]


@pytest.mark.parametrize(("prompt", "answer", "fits"), [(9, 8, True), (9, 9, False), (30, 1, False)])
def test_a_request_that_can_never_fit_is_refused_at_once(prompt: int, answer: int, fits: bool) -> None:
    # 16 tokens of KV memory; the last token of an answer is never computed, so needs no place.
    host, ledger = loaded(engine(blocks=4, block_size=4), [(prompt, answer)])
    schedule(host)
    assert ledger.refused == ([] if fits else [0])


def test_a_request_beyond_the_context_is_refused() -> None:
    assert engine(context=10).can_hold(6, 4)
    assert not engine(context=10).can_hold(7, 4)


class _NobodyYields:
    name = "stubborn"

    def __getattr__(self, name: str) -> object:
        return getattr(make_policy("fcfs"), name)

    def victim(self, *_: object) -> None:
        return None


def test_a_policy_that_names_no_victim_is_told_so() -> None:
    ledger = Ledger(2)
    host = Engine(engine(blocks=4, block_size=2), _NobodyYields(), ledger)  # type: ignore[arg-type]
    for row in range(2):
        host.submit(Job(str(row), 0.0, 3), row, 5)
    with pytest.raises(RuntimeError, match="stubborn"):
        schedule(host)
