"""What is concluded from a `PrebleStudy`: the paper's statements, and who beats whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from experiments.preble import paper
from experiments.preble.cells import COMPARED, Cell, Place, Run, find, places
from experiments.preble.study import PrebleStudy
from lengthwise.simulator.paired import Ratio
from lengthwise.simulator.routing_times import measured_s, routing_times

E2: Final = Run("e2")
E2_TOLD: Final = Run("e2_length", "oracle")
OURS_TOLD: Final = Run("lengthwise", "oracle")
HIGH: Final = 32.0
"""Requests per second from which on ours is to win."""


def length_name(lengths: str) -> str:
    """A distribution as one reads it: the lengths, all as likely."""
    return " or ".join(pair.partition(":")[0] for pair in lengths.split(","))


def behind_naive(found: PrebleStudy) -> Iterator[tuple[str, float | None, dict[str, Ratio]]]:
    """Each statement whose place was simulated, its number if it has one, and E2 over each naive router there."""
    known = {(place.engines, place.at) for place in places(found.react)}
    for claim, engines, rate, said in paper.CLAIMS:
        if (engines, rate) in known:
            e2 = find(found.react, E2, engines, rate)
            naive = {name: find(found.react, Run(name), engines, rate) for name in paper.NAIVE}
            yield claim, said, {name: e2.over(other, "per_token_s") for name, other in naive.items()}


def by_true_lengths(found: PrebleStudy) -> dict[float, Ratio]:
    """E2 with true lengths over E2 on figure 2's engines, by requests per second."""
    rates = [place.at for place in places(found.react) if place.engines == paper.COMPARED]
    told = {rate: find(found.react, E2_TOLD, paper.COMPARED, rate) for rate in rates}
    return {rate: cell.over(find(found.react, E2, paper.COMPARED, rate), "per_token_s") for rate, cell in told.items()}


def overheads(engines: Sequence[int]) -> Iterator[tuple[str, list[float], str]]:
    """Of each router: microseconds by number of engines, and what the paper says of it."""
    for router in routing_times()["us"]:
        theirs = [
            f"{count}: " + " to ".join(f"{1e6 * of[router][rate]:,.0f}" for rate in (min(of[router]), max(of[router])))
            for count, of in paper.OVERHEAD_S.items()
            if router in of
        ]
        yield router, [1e6 * measured_s(router, count) for count in engines], "; ".join(theirs) or "–"


def ours_over_e2_length(found: PrebleStudy) -> Iterator[tuple[Place, list[Ratio]]]:
    """Normalized latency and E2E with true lengths, then with none, where requests come often."""
    for place in sorted(places(found.react), key=lambda place: place.engines):
        if place.at >= HIGH:
            pairs = [
                [
                    find(found.react, Run(router, told), place.engines, place.at)
                    for router in ("lengthwise", "e2_length")
                ]
                for told in ("oracle", "none")
            ]
            yield place, [ours.over(theirs, measure) for ours, theirs in pairs for measure in COMPARED]


def ours_over_others(found: PrebleStudy) -> Iterator[tuple[Place, list[tuple[Cell, Ratio, Ratio]]]]:
    """At each load of CASTILLO: every router, with mean E2E and p99 TTFT of ours with predictions over its own."""
    for place in places(found.shared):
        here = [cell for cell in found.shared if cell.place == place]
        ours = find(here, Run("lengthwise", found.predictor), place.engines, place.at)
        yield place, [(cell, ours.over(cell, "e2e_s"), ours.over(cell, "ttft_s", "p99")) for cell in here]
