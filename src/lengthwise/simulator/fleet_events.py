"""Engines that fail, join and drain during a simulation; "3@120" is engine 3 at second 120."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lengthwise.errors import InputError

FleetEventKind = Literal["down", "up", "drain"]

_KINDS: Final[tuple[FleetEventKind, ...]] = get_args(FleetEventKind)


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """An engine fails, joins or drains at `at_s` seconds of virtual time. `engine` is its index in the fleet.

    down: the engine and its KV memory are gone at once; its unfinished requests are routed again. up: the engine
    joins with empty memory, or accepts requests again after a drain. drain: it accepts no new requests and finishes
    those it has.
    """

    at_s: float
    engine: int
    kind: FleetEventKind


def parse_fleet_events(kind: FleetEventKind, text: str) -> list[FleetEvent]:
    """Parse "3@120,4@130.5"."""
    return [_parse(kind, part.strip()) for part in text.split(",")]


def _parse(kind: FleetEventKind, part: str) -> FleetEvent:
    number, at, moment = part.partition("@")
    try:
        engine, at_s = int(number), float(moment)
        if not at or engine < 0 or not (math.isfinite(at_s) and at_s >= 0):
            raise ValueError
    except ValueError:
        hint = "write ENGINE@SECONDS, as in 3@120, engines numbered from 0"
        raise InputError(f"'{part}'", field=kind, hint=hint) from None
    return FleetEvent(at_s, engine, kind)


def sorted_events(events: Iterable[FleetEvent], engines: int) -> tuple[FleetEvent, ...]:
    """Sort fleet events by time (stable).

    Raises InputError if an event names an unknown engine or the last events leave no engine running.
    """
    ordered = tuple(sorted(events, key=lambda event: event.at_s))
    for event in ordered:
        if event.kind not in _KINDS:
            raise InputError(f"'{event.kind}'", field="fleet_events", hint=f"one of {', '.join(_KINDS)}")
        if not 0 <= event.engine < engines:
            hint = f"the fleet has engines 0 to {engines - 1}"
            raise InputError(f"there is no engine {event.engine}", field=event.kind, hint=hint)
    last = {event.engine: event.kind for event in ordered}
    if len(last) == engines and "up" not in last.values():
        raise InputError(
            "no engine is up in the end", field="down", hint="bring one back with --up, or keep one running"
        )
    return ordered


def initially_absent(events: Sequence[FleetEvent]) -> frozenset[int]:
    """Return the engines that join later: those whose first event is "up"."""
    first: dict[int, FleetEventKind] = {}
    for event in events:
        first.setdefault(event.engine, event.kind)
    return frozenset(engine for engine, kind in first.items() if kind == "up")
