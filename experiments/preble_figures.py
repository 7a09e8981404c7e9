"""The figures of length-aware Preble, as its authors ran them and as it would be fair.

Two things decide what its figure 1 shows. Lengths: figures 1A to 1C have 150 output tokens for every request; the set
of 1 or 300 belongs to figure 2. And the end of a run: the authors' simulator stops after 30 s and averages the requests
that have finished, so that requests in a long queue do not count; a run to drain counts all. Both rules are shown side
by side, from the same simulations.

Then: does the time of a choice explain E2's latency (figure 1C)? Do the figures hold with the settings of the authors'
code (`lpm` inside engines, no eviction in the cost, max_tokens as the assumed length)? Can true lengths matter where
each shared prefix has its own length?
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from experiments.routing import (
    BY_PREFIX,
    ENGINE,
    EXAMPLES,
    FIXED,
    LATENCY_S,
    PAPER,
    PAPER_ENGINES,
    SECONDS,
    VARIED,
    WORKLOADS,
    Cell,
    Place,
    React,
    Routing,
)
from experiments.study import Call, Claim, Run, SeededGrid, Study, sections
from lengthwise.intervals import Ratio
from lengthwise.reports.tables import Table, multiple, seconds, share
from lengthwise.simulator import Fleet, simulate
from lengthwise.simulator.routing import routing_time_s
from lengthwise.simulator.tasks import Setting

LENGTH_NAMES: Final = {FIXED: "150", VARIED: "1 or 300", BY_PREFIX: BY_PREFIX}
CUT, DRAINED = "cut_s", "drained_s"
RULES: Final = {CUT: "cut, as the paper", DRAINED: "to drain"}
LOR: Final = "least_outstanding"
CODE_E2, CODE_E2_LENGTH = "e2:finished=0,eviction=0", "e2_length:eviction=0"
"""With the settings of the authors' code."""
CHARGES_S: Final = (0.0, 0.002, 0.006)
"""Seconds per choice of E2, below and above the paper's 0.6 to 2.5 ms."""
STATEMENTS: Final = (
    ("4 engines: E2 is slower than the naive routers at 128/s", 4, 128.0, None),
    ("8 engines: E2 is slower than all naive routers at 32/s", 8, 32.0, None),
    ("8 engines: E2 is slower than random at 128/s", 8, 128.0, None),
    ("16 engines: E2 takes 1.6 times as long at 64/s", 16, 64.0, 1.6),
    ("16 engines: E2 takes 1.6 times as long at 128/s", 16, 128.0, 1.6),
)
"""On figures 1A and 1B: engines, requests per second, and E2 over the baselines where the text has a number."""


@dataclass(frozen=True)
class FiguresGrid(SeededGrid):
    """What is simulated."""

    seeds: int = 5
    engines: tuple[int, ...] = (4, 8, 16)
    rates: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    seconds: float = SECONDS


def routed(where: Setting, rate: float, variant: Routing, charge_s: float, cut_at_s: float) -> dict[str, Any]:
    """Return the mean normalized latency of all requests, and of those that finished in time, with their share."""
    outcome = simulate(
        where.workload_at(rate),
        where.fleet,
        variant.policy,
        router=variant.router,
        predictor=variant.predictor or "oracle",  # not used by routers without a predictor
        routing_s=charge_s,
    )
    per_token = (outcome.finished_s - outcome.arrival_s) / outcome.output_tokens
    finished = outcome.finished_s <= cut_at_s
    return {
        DRAINED: float(per_token.mean()),
        CUT: float(per_token[finished].mean()) if finished.any() else math.nan,
        "finished": float(finished.mean()),
    }


@dataclass(frozen=True)
class FiguresResult:
    """Everything measured."""

    grid: FiguresGrid
    cells: tuple[Cell, ...]

    def find(self, lengths: str, engines: int, rate: float, variant: Routing) -> Cell | None:
        """The cell of a variant in a place, None if it was not run."""
        wanted = (Place(lengths, engines, rate), variant)
        return next((cell for cell in self.cells if (cell.place, cell.run) == wanted), None)

    def ratio(
        self, lengths: str, engines: int, rate: float, variant: Routing, base: Routing, rule: str
    ) -> Ratio | None:
        """One variant over another, None if either was not run."""
        ours, theirs = (self.find(lengths, engines, rate, each) for each in (variant, base))
        return None if ours is None or theirs is None else ours.over(theirs, rule)


E2, E2_TRUE = Routing("e2"), Routing("e2_length", "oracle")
OURS, OURS_TRUE = Routing("lengthwise", "none"), Routing("lengthwise", "oracle")
NAIVE: Final = tuple(Routing(name) for name in ("random", "round_robin", LOR))
FAITHFUL: Final = tuple(
    Routing(router, predictor, "lpm")
    for router, predictor in ((LOR, None), (CODE_E2, None), (CODE_E2_LENGTH, "oracle"))
)
CHARGED: Final = tuple(Routing("e2", charge_s=charge) for charge in CHARGES_S)
NAMES: Final = {
    E2: "e2", E2_TRUE: "e2_length, true lengths", OURS: "lengthwise, no lengths", OURS_TRUE: "lengthwise, true lengths",
    **{variant: variant.router for variant in NAIVE},
    **dict(zip(FAITHFUL, ("least_outstanding", "e2", "e2_length, true lengths"), strict=True)),
}  # fmt: skip


def _plan(grid: FiguresGrid) -> Iterator[tuple[Place, Routing]]:
    """The places of the paper's statements first."""
    high = [rate for rate in grid.rates if rate >= 64.0]
    for engines in grid.engines:
        for rate in grid.rates:
            yield from ((Place(FIXED, engines, rate), variant) for variant in (*NAIVE, E2, OURS))
            if rate in high:
                yield from ((Place(FIXED, engines, rate), variant) for variant in FAITHFUL[:2])
            yield from ((Place(FIXED, engines, rate), variant) for variant in CHARGED)
    for rate in high:
        for variant in (Routing(LOR), E2, E2_TRUE, OURS, OURS_TRUE, *FAITHFUL):
            yield Place(VARIED, PAPER_ENGINES, rate), variant
        for engines in grid.engines[-2:]:
            yield from (
                (Place(BY_PREFIX, engines, rate), variant) for variant in (Routing(LOR), E2, E2_TRUE, OURS, OURS_TRUE)
            )


def measure(run: Run, grid: FiguresGrid) -> FiguresResult:
    """Run everything that the cache does not have."""

    def task(name: tuple[Place, Routing], seed: int) -> Call:
        place, variant = name
        source = React(place.workload, round(grid.seconds * place.at))
        where = Setting(source, Fleet.parse(f"{place.engines}*{ENGINE}"), seed, own_arrivals=False)
        measured_s = routing_time_s(variant.router, place.engines)
        charge_s = measured_s if variant.charge_s is None else variant.charge_s
        return Call(routed, (where, place.at, variant, charge_s, grid.seconds))

    found = run.by_seed("react", list(dict.fromkeys(_plan(grid))), grid.seeds, task)
    return FiguresResult(grid, tuple(Cell(*name, seeds=each) for name, each in found.items()))


def tables(found: FiguresResult) -> list[Table]:
    """Figures 1A and 1B, 1C, 1D, 2, the authors' settings, and lengths by prefix."""
    return [
        _latencies(found, FIXED, (*NAIVE, E2, OURS), "Figures 1A and 1B, 150 tokens"),
        _overhead(found),
        _variance(found),
        _latencies(found, VARIED, (Routing(LOR), E2, E2_TRUE, OURS, OURS_TRUE), "Figure 2, 1 or 300 tokens"),
        _latencies(found, FIXED, FAITHFUL[:2], "The authors' settings (lpm inside engines), 150 tokens"),
        _latencies(found, VARIED, FAITHFUL, "The authors' settings (lpm inside engines), 1 or 300 tokens"),
        _latencies(found, BY_PREFIX, (Routing(LOR), E2, E2_TRUE, OURS, OURS_TRUE), "A length for each prefix"),
        _true_lengths(found),
    ]


def _spots(found: FiguresResult, lengths: str) -> list[tuple[int, float]]:
    return sorted({(c.place.engines, c.place.at) for c in found.cells if c.place.workload == lengths})


def _latencies(found: FiguresResult, lengths: str, variants: Sequence[Routing], title: str) -> Table:
    """Mean normalized latency under both rules, and the first E2 over least outstanding."""
    e2 = next(place for place, variant in enumerate(variants) if variant.router.startswith("e2"))
    lor = next(place for place, variant in enumerate(variants) if variant.router == LOR)
    rows: list[list[str]] = []
    for engines, rate in _spots(found, lengths):
        known = (found.find(lengths, engines, rate, variant) for variant in variants)
        cells = [cell for cell in known if cell is not None]
        if len(cells) < len(variants):
            continue
        for rule, name in RULES.items():
            shown = [seconds(cell.mean(rule)) for cell in cells]
            counted = share(cells[e2].mean("finished")) if rule == CUT else "100.0 %"
            rows.append([f"{engines}", f"{rate:g}", name, *shown, multiple(cells[e2].over(cells[lor], rule)), counted])
    columns = ("engines", "requests/s", "run", *(NAMES[each] for each in variants), "e2 / LOR", "of e2's requests")
    notes = [
        (
            f"Mean normalized latency (E2E over output tokens); ReAct, {WORKLOADS} workloads, {EXAMPLES} "
            f"examples, {ENGINE}, {found.grid.seconds:g} s of Poisson arrivals, {found.grid.seeds} seeds, "
            "paired; seconds are simulated."
        ),
        "cut: only requests that finish while others arrive; of e2's requests: the share that counts.",
    ]
    return Table(title, columns, rows, notes, sections(rows, lambda row: " ".join(row[:2])))


def _overhead(found: FiguresResult) -> Table:
    rows = []
    for engines in found.grid.engines:
        for rate in found.grid.rates:
            cells = [cell for each in CHARGED if (cell := found.find(FIXED, engines, rate, each)) is not None]
            for rule, name in RULES.items():
                times = [f"{1000 * cell.mean(rule):.2f} ms" for cell in cells]
                ratios = [multiple(cell.over(cells[0], rule)) for cell in cells[1:]]
                rows.append([f"{engines}", f"{rate:g}", name, *times, *ratios])
    charges = [f"{1000 * charge:g} ms" for charge in CHARGES_S]
    columns = ("engines", "requests/s", "run", *charges, *(f"{charge} / none" for charge in charges[1:]))
    notes = [
        "The paper measures 0.6 to 2.5 ms per choice of Preble, 0.2 to 0.5 ms of least outstanding.",
        "python -m benchmarks.routing --rates measures ours by the rate.",
    ]
    title = "Figure 1C: E2's latency by its charge per choice, 150 tokens"
    return Table(title, columns, rows, notes, sections(rows, lambda row: row[0]))


def _spread_cost(found: FiguresResult, variant: Routing, rate: float, rule: str) -> Ratio | None:
    """Latency with lengths of 1 or 300 over that with 150 for all: the same mean, arrivals and prompts."""
    varied, fixed = (found.find(lengths, PAPER_ENGINES, rate, variant) for lengths in (VARIED, FIXED))
    return None if varied is None or fixed is None else varied.over(fixed, rule)


def _variance(found: FiguresResult) -> Table:
    rows = []
    for rate in found.grid.rates:
        for variant in (Routing(LOR), E2, OURS):
            ratios = [_spread_cost(found, variant, rate, rule) for rule in RULES]
            shown = [multiple(ratio) for ratio in ratios if ratio is not None]
            if len(shown) == len(RULES):
                rows.append([f"{rate:g}", NAMES[variant], *shown])
    notes = ["Mean normalized latency weights a wait by 1 / length, so answers of one token dominate it."]
    columns = ("requests/s", "router", *RULES.values())
    return Table(f"Figure 1D: 1 or 300 tokens over 150, {PAPER_ENGINES} engines", columns, rows, notes)


def _true_lengths(found: FiguresResult) -> Table:
    pairs = (("e2", E2_TRUE, E2), ("lengthwise", OURS_TRUE, OURS), ("e2, authors' settings", FAITHFUL[2], FAITHFUL[1]))
    rows = []
    for lengths in (VARIED, BY_PREFIX):
        for engines, rate in _spots(found, lengths):
            for name, true, without in pairs:
                ratios = [found.ratio(lengths, engines, rate, true, without, rule) for rule in RULES]
                if all(ratio is not None for ratio in ratios):
                    shown = [multiple(ratio) for ratio in ratios if ratio is not None]
                    rows.append([LENGTH_NAMES[lengths], f"{engines}", f"{rate:g}", name, *shown])
    theirs = "; ".join(f"{rate:g}/s {true / plain:.3f}" for rate, (plain, true) in LATENCY_S.items())
    notes = [f"The paper, 1 or 300, 8 engines, one run each: {theirs}."]
    columns = ("lengths", "engines", "requests/s", "router", *RULES.values())
    return Table("True lengths over none", columns, rows, notes)


def claims(found: FiguresResult) -> list[Claim]:
    """The statements on figures 1A, 1B, 1D and 2 under both rules; without a number in the text, 1 is the bound."""
    rows = []
    for rule, setting in RULES.items():
        for statement, engines, rate, value in STATEMENTS:
            for base in NAIVE:
                ratio = found.ratio(FIXED, engines, rate, E2, base, rule)
                if ratio is not None:
                    rows.append(Claim(f"{statement}: E2 over {base.router}", value, ratio, setting))
        for rate in found.grid.rates:
            for variant in (E2, Routing(LOR)):
                ratio = _spread_cost(found, variant, rate, rule)
                if ratio is not None:
                    rows.append(Claim(f"1 or 300 over 150 tokens, {rate:g}/s: {variant.router}", None, ratio, setting))
        for rate, (plain, true) in LATENCY_S.items():
            ratio = found.ratio(VARIED, PAPER_ENGINES, rate, E2_TRUE, E2, rule)
            if ratio is not None:
                rows.append(Claim(f"E2 with true lengths over E2, {rate:g}/s", true / plain, ratio, setting))
        engines, rate = max(found.grid.engines), max(found.grid.rates)
        for base in (E2, Routing(LOR)):
            ratio = found.ratio(FIXED, engines, rate, OURS, base, rule)
            if ratio is not None:
                statement = f"{engines} engines, {rate:g}/s: {NAMES[OURS]}, over {base.router}"
                rows.append(Claim(statement, None, ratio, setting))
    return rows


STUDY: Study[FiguresGrid, FiguresResult] = Study(
    name="preble_figures",
    title="Length-aware Preble: its figures, like for like",
    question="Do the figures of length-aware Preble hold under its rules, and under fair ones?",
    paper=PAPER,
    source="ReAct",
    grid=FiguresGrid(),
    quick=FiguresGrid(seeds=2, engines=(8, 16), rates=(128.0,), seconds=8.0),
    minutes=(6, 0.8),
    measure=measure,
    tables=tables,
    claims=claims,
    claim_notes=lambda _: ["Figures 1A and 1B with 150 output tokens, figure 2 with 1 or 300. E2 over each router."],
)
