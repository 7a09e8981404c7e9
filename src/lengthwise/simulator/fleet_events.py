"""Engines that fail, join and drain in mid-run, as a person writes it: 3@120 is engine 3 at second 120."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from lengthwise.errors import InputError

Kind = Literal["down", "up", "drain"]

_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Change:
    """What befalls an engine, and when, in seconds of virtual time. Engines are numbered by their place in the fleet.

    down: it is gone at once with its memory; who was there and has not finished is sent anew. up: it is there with
    empty memory, or takes requests again after a drain. drain: it takes no new ones and finishes what it has.
    """

    at_s: float
    engine: int
    kind: Kind


def parse_changes(kind: Kind, text: str) -> list[Change]:
    """Read "3@120,4@130.5"."""
    return [_parse(kind, part.strip()) for part in text.split(",")]


def _parse(kind: Kind, part: str) -> Change:
    number, at, moment = part.partition("@")
    try:
        engine, at_s = int(number), float(moment)
        if not at or engine < 0 or not (math.isfinite(at_s) and at_s >= 0):
            raise ValueError
    except ValueError:
        hint = "write ENGINE@SECONDS, as in 3@120, engines numbered from 0"
        raise InputError(f"'{part}'", field=kind, hint=hint) from None
    return Change(at_s, engine, kind)


def in_order(changes: Iterable[Change], engines: int) -> tuple[Change, ...]:
    """By time, and as given where that is the same; told where an engine is not there or nobody is left in the end."""
    ordered = tuple(sorted(changes, key=lambda change: change.at_s))
    for change in ordered:
        if change.kind not in _KINDS:
            raise InputError(f"'{change.kind}'", field="changes", hint=f"one of {', '.join(_KINDS)}")
        if not 0 <= change.engine < engines:
            hint = f"the fleet has engines 0 to {engines - 1}"
            raise InputError(f"there is no engine {change.engine}", field=change.kind, hint=hint)
    last = {change.engine: change.kind for change in ordered}
    if len(last) == engines and "up" not in last.values():
        raise InputError(
            "no engine is up in the end", field="down", hint="let one come back with --up, or leave one alone"
        )
    return ordered


def joining(changes: Sequence[Change]) -> frozenset[int]:
    """Engines that are not there at first: those to which nothing happens before they come up."""
    first: dict[int, Kind] = {}
    for change in changes:
        first.setdefault(change.engine, change.kind)
    return frozenset(engine for engine, kind in first.items() if kind == "up")
