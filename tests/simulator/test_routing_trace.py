"""Why a request went where it went: what is kept is what the router went by, and keeping it changes nothing."""

from __future__ import annotations

import pytest

from lengthwise.routers import ROUTERS
from lengthwise.simulator import simulate
from lengthwise.simulator.routing_trace import read_reasons
from tests.simulator.test_routing import shared_prefixes, small

WEIGH = ("least_outstanding", "least_load", "dynamo", "lengthwise")


@pytest.mark.parametrize("name", ROUTERS)
def test_keeping_the_reasons_changes_nothing(name: str) -> None:
    plain, kept = (simulate(shared_prefixes(), small(), router=name, explain=explain) for explain in (False, True))
    assert plain.finish.tobytes() == kept.finish.tobytes()
    assert plain.reasons is None
    assert (kept.reasons is None) == (name == "round_robin"), "which is dealt out ahead: there is nothing to tell"


@pytest.mark.parametrize("name", WEIGH)
def test_the_engine_chosen_is_the_cheapest_of_all(name: str) -> None:
    outcome = simulate(shared_prefixes(), small(), router=name, explain=True)
    assert outcome.reasons is not None
    for weighed, chosen in zip(outcome.reasons.weighed, outcome.engine.tolist(), strict=True):
        assert weighed is not None
        sums = {engine: sum(terms.values()) for engine, terms in weighed.items()}
        assert set(sums) == {0, 1, 2}
        assert sums[chosen] == pytest.approx(min(sums.values()), rel=1e-9)


@pytest.mark.parametrize("name", sorted({*ROUTERS} - {*WEIGH, "round_robin"}))
def test_other_routers_tell_the_terms_of_their_choice(name: str) -> None:
    outcome = simulate(shared_prefixes(), small(), router=name, explain=True)
    assert outcome.reasons is not None
    assert [list(weighed or ()) for weighed in outcome.reasons.weighed] == [[one] for one in outcome.engine.tolist()]


def test_reasons_are_read_back_as_they_were_written() -> None:
    outcome = simulate(shared_prefixes(), small(), router="lengthwise", explain=True)
    assert outcome.reasons is not None
    columns = {name: column.to_pylist() for name, column in outcome.reasons.columns().items()}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert [read_reasons(row) for row in rows] == list(outcome.reasons.weighed)
