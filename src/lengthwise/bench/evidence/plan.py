"""Which cells are measured, in what order, and how long that takes.

A cell is one run of one policy, on one predictor, under one load, with the traffic of one repeat. Cells of a repeat
have the same traffic, so that they can be compared request by request; a repeat is run whole before the next, its cells
in random order, so that a machine that grows slower or faster favours nobody. Better still, its cells are run at once
(`at_once`): a round is then a load and a repeat, or several repeats of few orders, with stock vLLM beside each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final, Literal

from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.service import NO_PREDICTOR, known_predictor
from lengthwise.workloads.arrivals import generator

Kind = Literal["online", "offline"]

STOCK: Final = "fcfs"
"""The baseline: vLLM as it is, without the plug-in."""
ORACLE: Final = "oracle"
"""The true length told with each request."""
START_S: Final = 45.0
"""An engine's start, the warm-up and its end, about."""

_HEADLINE: Final = frozenset(
    {
        ("a", 1.1, STOCK, NO_PREDICTOR),
        ("a", 1.1, "sjf", "default"),
        ("a", 1.1, "lengthwise", "default"),
        ("a", 1.1, "lengthwise", ORACLE),
        ("a", 0.7, STOCK, NO_PREDICTOR),
        ("a", 0.7, "lengthwise", "default"),
    }
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `load` is the share of the measured capacity that arrives; None offline, where all is there at once."""

    setting: str
    policy: str
    predictor: str
    load: float | None
    repeat: int = 0

    @property
    def kind(self) -> Kind:
        """Whether requests arrive over time."""
        return "offline" if self.load is None else "online"

    @property
    def stock(self) -> bool:
        """Whether the plug-in is left out."""
        return self.policy == STOCK

    @property
    def id(self) -> str:
        """The name of its folder."""
        when = "offline" if self.load is None else f"{self.load:g}"
        prediction = "" if self.stock else f"-{predictor_label(self.predictor)}"
        return f"{self.setting}-{when}-{self.policy}{prediction}-r{self.repeat}"

    @property
    def said(self) -> str:
        """For people."""
        when = "offline" if self.load is None else f"load {self.load:g}"
        order = "fcfs (stock vLLM)" if self.stock else f"{self.policy} on {predictor_label(self.predictor)}"
        return f"({self.setting}) {when}, {order}, repeat {self.repeat}"

    @property
    def headline(self) -> bool:
        """Whether it is measured three times."""
        return (self.setting, self.load, self.policy, self.predictor) in _HEADLINE


@dataclass(frozen=True)
class Asked:
    """What a person wants measured."""

    policies: Sequence[str] = (STOCK, "sjf", "tie", "lengthwise")
    predictors: Sequence[str] = ("fast", "default", ORACLE)
    loads: Sequence[float] = (0.7, 1.1)
    settings: Sequence[str] = ("a", "b")
    repeats: int = 3
    seed: int = 0
    only_headline: bool = False
    offline: bool = True
    at_once: int = 1
    """Cells that are run at the same time."""
    every_load: bool = False
    """Also what is no headline at the lower loads, where little queues and little can be won."""

    def __post_init__(self) -> None:
        for policy in self.policies:
            make_policy(policy)
        for predictor in self.predictors:
            if predictor != ORACLE:
                known_predictor(predictor)
        for load in self.loads:
            if not 0 < load <= 10:
                raise InputError(
                    f"a load of {load:g}", source="--load", hint="give shares of capacity, such as 0.7,1.1"
                )
        if not 1 <= self.at_once <= len(self._orders()):
            hint = f"from 1 to {len(self._orders())}, as many as there are orders"
            raise InputError(f"{self.at_once} cells at once", source="--at-once", hint=hint)
        for setting in self.settings:
            if setting not in ("a", "b"):
                raise InputError(f"no setting '{setting}'", source="--settings", hint="a, b or a,b")

    def cells(self) -> list[Cell]:
        """In the order they are run: what measures capacity first, then repeat by repeat, each `at_once` together."""
        if self.at_once > 1:
            return self._in_rounds()
        found = [capacity_cell(setting) for setting in self.settings]
        for repeat in range(self.repeats):
            for setting in self.settings:
                mine = [cell for cell in self._of(setting, repeat) if cell not in found]
                order = generator(self.seed, f"order {setting} {repeat}").permutation(len(mine))
                found += _stock_before_oracle([mine[place] for place in order])
        return found

    def _of(self, setting: str, repeat: int) -> list[Cell]:
        cells = []
        for load in self.loads:
            for policy, predictor in self._orders():
                cell = Cell(setting, policy, predictor, load, repeat)
                once = repeat == 0 and not self.only_headline and (load == max(self.loads) or self.every_load)
                if cell.headline or once:
                    cells.append(cell)
        if self.offline and setting == "a" and repeat == 0 and not self.only_headline:
            cells += [Cell(setting, policy, self._best, None) for policy in self._others]
        return cells

    def _in_rounds(self) -> list[Cell]:
        """The same, each round full: engines that share a machine are as fast as they were when capacity was measured.

        Headline orders go together, several times; then the others, those of one policy together, with traffic of
        their own.
        """
        found = []
        for setting in self.settings:
            drained = self._parted([(policy, self._best) for policy in self._others])
            every = self.offline and setting == "a" and not self.only_headline
            for repeat, orders in enumerate(drained if every else drained[:1]):
                found += self._round(setting, None, [repeat], orders)
        where = [(setting, load) for setting in self.settings for load in self.loads]
        repeated = [self._repeated(setting, load) for setting, load in where]
        for in_turn in zip_longest(*repeated, fillvalue=[]):
            found += chain.from_iterable(in_turn)
        for (setting, load), before in zip(where, repeated, strict=True):
            done = 1 + max((cell.repeat for together in before for cell in together), default=-1)
            once = [] if self.only_headline or not (load == max(self.loads) or self.every_load) else self._orders()[1:]
            left = [order for order in once if order not in self._headline(setting, load)]
            many = Counter(policy for policy, _ in left)
            left.sort(key=lambda order: -many[order[0]])
            for repeat, orders in enumerate(self._parted(left), start=done):
                found += self._round(setting, load, [repeat], orders)
        return found

    def _repeated(self, setting: str, load: float) -> list[list[Cell]]:
        """Rounds of the headline orders; orders so few that several repeats have room at once are run so."""
        orders = self._headline(setting, load)
        parts = self._parted(orders)
        repeats = range(self.repeats * len(parts))
        if len(parts) > 1:
            return [self._round(setting, load, [each], parts[each % len(parts)]) for each in repeats]
        room = self.at_once // (1 + len(orders))
        return [
            self._round(setting, load, repeats[first : first + room], orders) for first in range(0, len(repeats), room)
        ]

    def _parted(self, orders: Sequence[tuple[str, str]]) -> list[Sequence[tuple[str, str]]]:
        """In parts that leave a place for stock vLLM."""
        room = self.at_once - 1
        return [orders[place : place + room] for place in range(0, len(orders), room)]

    def _round(
        self, setting: str, load: float | None, repeats: Sequence[int], orders: Sequence[tuple[str, str]]
    ) -> list[Cell]:
        """Stock vLLM and the orders, each repeat, and others beside the last until it is full."""
        mine = [(STOCK, NO_PREDICTOR), *orders]
        rest = [order for order in self._orders() if order not in mine]
        rest.sort(key=lambda order: order not in {each[2:] for each in _HEADLINE})
        picked = [(repeat, order) for repeat in repeats for order in mine]
        picked += [(repeats[-1], order) for order in rest[: self.at_once - len(picked)]]
        return [Cell(setting, policy, name, load, repeat) for repeat, (policy, name) in picked]

    def _headline(self, setting: str, load: float) -> list[tuple[str, str]]:
        return [order for order in self._orders()[1:] if (setting, load, *order) in _HEADLINE]

    @property
    def _others(self) -> list[str]:
        return [policy for policy in self.policies if policy != STOCK]

    @property
    def _best(self) -> str:
        """What a batch is drained on."""
        told = [name for name in self.predictors if name != ORACLE]
        return "default" if "default" in told else (told or [ORACLE])[0]

    def _orders(self) -> list[tuple[str, str]]:
        """Policies with what they predict; FCFS predicts nothing, and is always there to compare with."""
        return [(STOCK, NO_PREDICTOR), *((policy, name) for policy in self._others for name in self.predictors)]


def capacity_cell(setting: str) -> Cell:
    """The cell that measures capacity: the stock engine, all requests there at once."""
    return Cell(setting, STOCK, NO_PREDICTOR, None)


def _stock_before_oracle(cells: list[Cell]) -> list[Cell]:
    """In setting b the true lengths are those of the stock run, so whoever is told them comes after it."""
    return sorted(cells, key=lambda cell: cell.setting == "b" and cell.predictor == ORACLE)


def seconds(cell: Cell, n: int, capacity: float) -> float:
    """How long a cell takes: until the last has come, or until all is served, whichever is later."""
    return START_S + n / capacity * max(1.0, 1.0 if cell.load is None else 1.0 / cell.load)


def hours(cells: Sequence[Cell], n: Mapping[str, int], capacity: Mapping[str, float]) -> float:
    """How long the cells take, by the capacity measured in each setting."""
    return sum(seconds(cell, n[cell.setting], capacity[cell.setting]) for cell in cells) / 3600


def predictor_label(name: str) -> str:
    """The name of a predictor; of a model file its stem."""
    return Path(name).stem if name.endswith(".lw") else name
