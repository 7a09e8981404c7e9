"""The whole measurement, round after round: capacity first, then what was asked for, kept as soon as it is over.

A round is one cell, or several of one load that are run at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lengthwise.bench.evidence import own
from lengthwise.bench.evidence.cell import CellFailedError, Run, compile_once, run_cell
from lengthwise.bench.evidence.pace import PACE_REQUESTS, known_pace, write_pace
from lengthwise.bench.evidence.plan import ORACLE, STOCK, Cell, capacity_cell, hours, seconds
from lengthwise.bench.evidence.predictions import Columns, first_predictions, with_predictions
from lengthwise.bench.evidence.store import Store
from lengthwise.bench.evidence.together import CellBarrier, CellBarrierBrokenError, side_by_side
from lengthwise.bench.evidence.traffic import Count, Sizes, Traffic, official_test, played_traffic
from lengthwise.engines.embedded import engine_threads
from lengthwise.engines.smollm2 import model_folder
from lengthwise.errors import InputError
from lengthwise.predictors.service import NO_PREDICTOR
from lengthwise.simulator.costs import StepCost
from lengthwise.workloads.castillo import PACKAGED

_ATTEMPTS: Final = 2
_LATE_S: Final = 0.5


@dataclass
class Bench:
    """Runs cells into a store. `say` gets lines for people, `progress` (what is done now, share of the whole)."""

    store: Store
    sizes: Sizes
    say: Callable[[str], None]
    progress: Callable[[str, float], None]
    url: str | None = None
    compiled: bool = False
    at_once: int = 1
    failed: dict[str, str] = field(default_factory=dict)
    """Cells that are not there, and why."""
    _pace: StepCost | None = None
    _place: tuple[int, int] = (1, 1)
    _traffic: dict[tuple[str, int], Traffic] = field(default_factory=dict)
    _predicted: dict[tuple[str, int, str], Columns | None] = field(default_factory=dict)

    def begin(self) -> None:
        """Check that what is in the folder was measured the same way."""
        packaged = official_test().origin == PACKAGED
        data = "packaged sample" if packaged else "CASTILLO"
        engine: dict[str, object] = {"own_server": self.url is not None}
        if self.url is None:
            engine |= {"threads": engine_threads(), "compiled": self.compiled, "at_once": self.at_once}
        self.store.begin({**asdict(self.sizes), **own.settings(), **engine, "data": data})
        if self.at_once > 1:
            self._pace = known_pace(self.store.folder) or self._find_pace()
        if packaged:
            self.say("LENGTHWISE_DATA does not name CASTILLO's data: the packaged sample's test prompts are used")

    def run(self, cells: Sequence[Cell]) -> None:
        """Run what is not there yet. Ctrl-C leaves the cells that are over; the same again goes on from them."""
        told, rounds = 0, self._rounds(cells)
        for number, together in enumerate(rounds, start=1):
            known = len(self._capacities(cells))
            if known > told or number == 1:  # at first, and whenever a capacity has been measured
                self.say(self.forecast(cells))
                told = known
            if not all(self.store.has(cell) for cell in together):
                self._place = (number, len(rounds))
                names = "; ".join(cell.said for cell in together)
                self.say(f"{self._unit} {number} of {len(rounds)}: {names}{self._takes(together[0])}")
                self._try(together)
            for cell in together:
                if cell == capacity_cell(cell.setting) and cell.id in self.failed:
                    raise InputError(f"capacity cannot be measured: {self.failed[cell.id]}", hint="mend that first")

    @property
    def _unit(self) -> str:
        return "cell" if self.at_once == 1 else "round"

    def _rounds(self, cells: Sequence[Cell]) -> list[list[Cell]]:
        """What is run at the same time, as the plan has it."""
        return [list(cells[first : first + self.at_once]) for first in range(0, len(cells), self.at_once)]

    def forecast(self, cells: Sequence[Cell]) -> str:
        """How many cells there are and what they take, by the capacity that was measured."""
        left = [cell for cell in cells if not self.store.has(cell)]
        known = self._capacities(cells)
        ready = [cell for cell in left if cell.setting in known]
        n = {setting: self.sizes.requests(setting) for setting in ("a", "b")}
        text = f"{len(cells)} cells, {len(cells) - len(left)} of them there already"
        if ready:
            first = [together[0] for together in self._rounds(cells) if any(cell in ready for cell in together)]
            text += f"; {len(ready)} to run take about {hours(first, n, known):.1f} h"
        rates = ", ".join(f"({s}) {rate:.3g} requests/s" for s, rate in sorted(known.items()))
        text += f" (capacity under backlog: {rates})" if rates else ""
        if len(ready) < len(left):
            text += "; how long others take is known once capacity is measured, which their first cell does"
        return text

    def capacity(self, setting: str) -> float:
        """Requests a second under backlog, as measured."""
        if not self.store.has(capacity_cell(setting)):
            raise InputError(
                f"the capacity of setting {setting} is not measured",
                source=self.store.folder,
                hint=f"measure stock vLLM first: --policy {STOCK}",
            )
        return float(self.store.read(capacity_cell(setting)).told["summary"]["requests_per_s"])

    @cached_property
    def own(self) -> own.Own:
        """What setting b needs."""
        return own.Own(self.store.folder / own.FOLDER, self.sizes, self.say, self.url)

    @cached_property
    def count(self) -> Count | None:
        """Tokens by the embedded LLM's tokenizer; of another server's nothing is known."""
        if self.url is not None:
            return None
        tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)

    def traffic(self, cell: Cell) -> Traffic:
        """The traffic of the cell's repeat; in setting b, where cells are run at once, the first's.

        There the lengths that an oracle tells must be known beforehand, and capacity was measured with the first's.
        """
        repeat = 0 if cell.setting == "b" and self.at_once > 1 else cell.repeat
        key = (cell.setting, repeat)
        if key not in self._traffic:
            make = played_traffic if cell.setting == "a" else own.own_traffic
            self._traffic[key] = make(official_test(), self.sizes, repeat, self.count)
        return self._traffic[key]

    def _capacities(self, cells: Sequence[Cell]) -> dict[str, float]:
        settings = {cell.setting for cell in cells}
        return {each: self.capacity(each) for each in settings if self.store.has(capacity_cell(each))}

    def _takes(self, cell: Cell) -> str:
        if not self.store.has(capacity_cell(cell.setting)):
            return ""
        minutes = seconds(cell, self.sizes.requests(cell.setting), self.capacity(cell.setting)) / 60
        return f", about {minutes:.0f} min"

    def _find_pace(self) -> StepCost:
        """What steps are held to from now on: see `pace`."""
        self.say(f"finding a pace that {self.at_once} engines at once can keep, a few minutes")
        sizes = replace(self.sizes, n=min(PACE_REQUESTS, self.sizes.n))
        traffic = played_traffic(official_test(), sizes, self.sizes.seed, self.count)
        cell = Cell("a", "sjf", ORACLE, None)
        run = Run(cell, sizes, None, NO_PREDICTOR, traffic.lengths, compiled=self.compiled)
        company, folder = CellBarrier(self.at_once), self.store.folder / "pace"
        folders = [folder / str(number) for number in range(self.at_once)]
        for each in folders:
            each.mkdir(parents=True, exist_ok=True)
        try:
            if self.compiled:  # all at once, engines took over five minutes to start on a slow machine
                self.say("  one engine alone first, while vLLM compiles the LLM")
                compile_once(run, folder)
            side_by_side([partial(run_cell, run, traffic, each, lambda: None, company) for each in folders], company)
        except (CellFailedError, CellBarrierBrokenError) as error:
            raise InputError(f"no pace was found: {error}", hint="mend that first") from error
        return write_pace(self.store.folder, folders)

    def _try(self, together: Sequence[Cell]) -> None:
        """Run a round, and once more where it failed; what fails twice is named at the end."""
        for attempt in range(1, _ATTEMPTS + 1):
            began = time.monotonic()
            try:
                self._measure(together)
            except (CellFailedError, CellBarrierBrokenError) as error:
                self.say(f"  failed ({error})" + (", once more" if attempt < _ATTEMPTS else ", left out"))
                self.failed |= dict.fromkeys((cell.id for cell in together), str(error))
            else:
                self.say(f"  done in {(time.monotonic() - began) / 60:.1f} min: {self._seen(together[0])}")
                for cell in together[1:]:
                    self.say(f"    {cell.said}: {self._seen(cell)}")
                for cell in together:
                    self.failed.pop(cell.id, None)
                return

    def _measure(self, together: Sequence[Cell]) -> None:
        """Run cells, several at once in threads of their own; nothing else is done before all are over."""
        runs = [self._prepared(cell) for cell in together]
        answers = _Answers(sum(len(self.traffic(cell).prompts) for cell in together), self._ended)
        company = None if len(together) == 1 else CellBarrier(len(together))
        jobs = [
            partial(run_cell, run, self.traffic(run.cell), self.store.fresh(run.cell), answers.one_more, company)
            for run in runs
        ]
        found = [jobs[0]()] if company is None else side_by_side(jobs, company)
        for run, (told, requests) in zip(runs, found, strict=True):
            predictions = self._predictions(run, self.traffic(run.cell), told["engine"]["model"])
            capacity = None if run.rate is None else self.capacity(run.cell.setting)
            self.store.write(run.cell, {**told, "capacity": capacity}, with_predictions(requests, predictions))

    def _prepared(self, cell: Cell) -> Run:
        rate = None if cell.load is None else cell.load * self.capacity(cell.setting)
        adapted = cell.setting == "b" and not cell.stock and self.url is None
        predictor = self.own.predictor(cell.predictor, self.count) if adapted else cell.predictor
        true = self._true(cell, self.traffic(cell))
        return Run(cell, self.sizes, rate, predictor, true, self.url, compiled=self.compiled, pace=self._pace)

    def _ended(self, answers: int, n: int) -> None:
        """Show how far the round and the whole are."""
        number, rounds = self._place
        text = f"{self._unit} {number} of {rounds}: {answers:,} of {n:,} answers"
        self.progress(text, (number - 1 + answers / n) / rounds)

    def _predictions(self, run: Run, traffic: Traffic, llm: str) -> Columns | None:
        """Predicted once for all cells of a repeat."""
        key = (run.cell.setting, run.cell.repeat, run.cell.predictor)
        if run.cell.predictor == ORACLE or key not in self._predicted:  # what is true in setting b differs by load
            self._predicted[key] = first_predictions(run, traffic, llm)
        return self._predicted[key]

    def _true(self, cell: Cell, traffic: Traffic) -> NDArray[np.int64] | None:
        """The lengths to come: those played, or those that the stock run with the same seeds had; None before it."""
        if cell.setting == "a":
            return traffic.lengths
        beside = self.at_once > 1  # the stock run of the same load is not over yet
        stock = capacity_cell("b") if beside else Cell(cell.setting, STOCK, NO_PREDICTOR, cell.load, cell.repeat)
        if cell.predictor == ORACLE and not self.store.has(stock):
            raise CellFailedError(f"the true lengths are those of {stock.id}, which is not there")
        if cell.stock or not self.store.has(stock):
            return None
        return self.store.read(stock).column("output_tokens").astype(np.int64)

    def _seen(self, cell: Cell) -> str:
        told = self.store.read(cell).told
        e2e, rate = told["summary"]["e2e_s"], told["summary"]["requests_per_s"]
        late = told["counts"]["client_late_s"]
        behind = f"; sent up to {late:.1f} s late, this machine is too busy" if late > _LATE_S else ""
        return f"E2E mean {e2e['mean']:.1f} s, p99 {e2e['p99']:.1f} s, {rate:.3g} requests/s{behind}"


@dataclass
class _Answers:
    """Counts the answers of cells that run in several threads."""

    n: int
    on_end: Callable[[int, int], None]
    _ended: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def one_more(self) -> None:
        with self._lock:
            self._ended += 1
            self.on_end(self._ended, self.n)


def from_outside(cells: Sequence[Cell], policy: str, predictor: str) -> list[Cell]:
    """Of a server's cells those that it can run as it is: one order, which nobody can change from outside."""
    wanted = (STOCK, NO_PREDICTOR) if policy == STOCK else (policy, predictor)
    return [cell for cell in cells if (cell.policy, cell.predictor) == wanted]
