"""What routers are charged: what was measured, unless something is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.routers import ROUTERS
from lengthwise.simulator.routing_times import charged, measured_s, routing_times


def test_every_router_was_measured_with_the_same_engines() -> None:
    kept = routing_times()
    assert kept["command"].startswith("python -m benchmarks.routing")
    assert set(kept["us"]) == set(ROUTERS)
    assert len({tuple(of) for of in kept["us"].values()}) == 1
    assert all(us > 0 for of in kept["us"].values() for us in of.values())


@given(st.sampled_from(list(ROUTERS)), st.integers(2, 4096))
def test_a_router_takes_what_was_measured_and_nothing_beyond(router: str, engines: int) -> None:
    known = {int(count): 1e-6 * us for count, us in routing_times()["us"][router].items()}
    takes = measured_s(router, engines)
    assert min(known.values()) - 1e-12 <= takes <= max(known.values()) + 1e-12
    for count, seconds in known.items():
        assert measured_s(router, count) == pytest.approx(seconds)
    if engines > max(known):
        assert takes == pytest.approx(known[max(known)])


def test_what_is_given_goes_before_what_was_measured() -> None:
    names = ["e2:window=5", "lengthwise"]
    measured = {"e2": measured_s("e2", 8), "lengthwise": measured_s("lengthwise", 8)}
    assert charged(names, 8) == measured
    assert charged(names, 8, {"e2": 800}) == {**measured, "e2": pytest.approx(8e-4)}
    assert charged(names, 8, 0) == {"e2": 0.0, "lengthwise": 0.0}
    assert charged(names, 1) == {}, "one engine needs no router"
    with pytest.raises(InputError, match="there is no router 'e3'"):
        charged(names, 8, {"e3": 1.0})
