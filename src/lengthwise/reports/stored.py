"""Runs that a command has stored with --json: read again, and two files compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports.latency_figures import figures, latency_by_length, latency_over_time, ratio_intervals
from lengthwise.reports.page import Document, Figure, Origin
from lengthwise.reports.runs import NAMES, SHOWN, ReportedRun, at_highest_load, judged
from lengthwise.reports.simulation import sweep_runs
from lengthwise.reports.tables import Table, multiple, seconds
from lengthwise.reports.verdict import Verdict, on_change, on_policies
from lengthwise.simulator.gains import GAIN_FIGURES
from lengthwise.simulator.grid import figure_name
from lengthwise.simulator.tasks import SeedResults

_SETTING: Final = ("workload", "content_hash", "fleet", "seeds", "requests", "slo", "url", "model")


_JUDGED: Final = {figure_name(*what): title for what, title in GAIN_FIGURES.items()}
_SAME_CAPACITY: Final = 0.01


@dataclass(frozen=True)
class StoredRuns:
    """The content of a file: its runs, and what they were made with."""

    name: str
    runs: tuple[ReportedRun, ...]
    content: Mapping[str, Any]

    @property
    def origin(self) -> Origin | None:
        """The command that made the file, if the file has it."""
        stored = self.content.get("origin")
        return None if stored is None else Origin(**stored)

    def by_seed(self, place: int) -> list[Mapping[str, Any]]:
        """Return the summaries of each seed of a run; empty where the file has none."""
        return list(self._stored(place).get("by_seed") or [])

    def rate(self, place: int) -> float | None:
        """Return the offered requests per second of a run; None where the file does not have it."""
        return self._stored(place).get("offered_per_s")

    def _stored(self, place: int) -> Mapping[str, Any]:
        runs: Sequence[Mapping[str, Any]] = self.content.get("runs") or []
        return runs[place] if place < len(runs) else {}

    def table(self) -> Table:
        """Return the latencies of every run."""
        rows = []
        for run in self.runs:
            figures = [seconds(run.latency.get(name, {}).get(each, math.nan)) for name, each in SHOWN]
            rows.append([run.label, run.offered, *figures, multiple(run.ratio("e2e_mean"), 2)])
        columns = ["run", "load", *(f"{NAMES[name]} {each}" for name, each in SHOWN), "E2E mean over fcfs"]
        return Table(self.name, columns, rows, keys=2)

    @property
    def document(self) -> Document:
        """The runs as they are shown."""
        verdict = on_policies(judged(self.runs))
        known = {"verdict": str(verdict), **self.content}
        return Document(self.name, [self.table()], known, verdict, lambda: figures(self.runs), self.origin)


def read_runs(path: Path) -> StoredRuns:
    """Read a file of `simulate --json`, `sweep --json`, `plan --json` or `replay --json`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", source=path) from None
    except (OSError, ValueError) as error:
        raise InputError(f"is not JSON: {error}", source=path) from None
    hint = "give a file that simulate, sweep, plan or replay has written with --json"
    try:
        stored = sweep_runs(content["rows"]) if "rows" in content else [ReportedRun.of(run) for run in content["runs"]]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError("holds no runs", source=path, hint=hint) from None
    if not stored:
        raise InputError("holds no runs", source=path, hint=hint)
    return StoredRuns(path.name, tuple(stored), content)


@dataclass(frozen=True)
class StoredPair:
    """The same run in two files; ratios are second over first, below 1 is better."""

    first: ReportedRun
    second: ReportedRun
    ratios: Mapping[str, Ratio]

    @property
    def label(self) -> str:
        """The run's name, and both loads or names if they differ."""
        if self.second.label == self.first.label and not self.same_offered:
            return f"{self.second.label} at {self.second.offered} (was {self.first.offered.removeprefix('load ')})"
        ours, theirs = (
            f"{run.label} at {run.offered}" if run.offered else run.label for run in (self.second, self.first)
        )
        return ours if ours == theirs else f"{ours}, before: {theirs}"

    @property
    def same_offered(self) -> bool:
        """Whether both runs have the same load."""
        return self.first.offered == self.second.offered


@dataclass(frozen=True)
class StoredComparison:
    """Two files compared, run by run."""

    first: StoredRuns
    second: StoredRuns
    pairs: tuple[StoredPair, ...]

    @property
    def verdict(self) -> Verdict:
        """In words, by the pair that has changed most beyond noise."""
        changes = [
            (f"{title} of {pair.label}", pair.ratios[name]) for pair in self.pairs for name, title in _JUDGED.items()
        ]
        return on_change(changes, self.first.name, self.second.name)

    @property
    def notes(self) -> list[str]:
        """How the files were made, what differs between them beside the figures, and how sure the ratios are."""
        first, second = self.first.content, self.second.content
        files = (self.first, self.second)
        notes = [f"{file.name}: {file.origin.command}" for file in files if file.origin is not None]
        different = [name for name in _SETTING if first.get(name) != second.get(name)]
        notes += [f"{name}: {first.get(name)} -> {second.get(name)}" for name in different]
        capacity = [_number(content, "capacity", "requests_per_s") for content in (first, second)]
        if all(capacity) and abs(capacity[1] / capacity[0] - 1) > _SAME_CAPACITY:
            change = f"capacity: {capacity[0]:.2f} -> {capacity[1]:.2f} requests/s"
            same_load = any(pair.same_offered for pair in self.pairs)
            other = "load is another rate; --rate gives both the same traffic" if same_load else "rate is another load"
            notes.append(f"{change}. The same {other}.")
        origins = (self.first.origin, self.second.origin)
        for field in ("version", "hardware"):
            found = [getattr(each, field) for each in origins if each is not None]
            if len(set(found)) > 1:
                notes.append(f"{field}: {' -> '.join(found)}")
        if "content_hash" in different:
            notes.append("The requests are not the same: a difference may come from them.")
        if all(math.isnan(pair.ratios["e2e_mean"].low) for pair in self.pairs):
            notes.append("No intervals: they need the same requests under several seeds (--seeds) in both files.")
        return notes

    def table(self) -> Table:
        """Return each run in both files and the ratio."""
        columns = ["run"]
        for metric, statistic in SHOWN:
            columns += [f"{NAMES[metric]} {statistic}", "then", "ratio"]
        rows = []
        for pair in self.pairs:
            row = [pair.label]
            for metric, statistic in SHOWN:
                values = [run.latency.get(metric, {}).get(statistic, math.nan) for run in (pair.first, pair.second)]
                row += [*map(seconds, values), multiple(pair.ratios[figure_name(metric, statistic)], 2)]
            rows.append(row)
        title = f"{self.first.name}, then {self.second.name}; a ratio below 1 is better"
        return Table(title, columns, rows, self.notes, together=3)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        runs = [{"run": pair.label, "ratios": pair.ratios} for pair in self.pairs]
        return {"verdict": str(self.verdict), "first": self.first.name, "second": self.second.name, "runs": runs}

    def document(self, origin: Origin) -> Document:
        """Return the document."""
        seeds = [file.origin.seed for file in (self.first, self.second) if file.origin is not None]
        origin = replace(origin, seed=", then ".join(dict.fromkeys(seeds)))
        title = f"{self.first.name}, then {self.second.name}"
        return Document(title, [self.table()], self.to_dict(), self.verdict, self.figures, origin)

    def figures(self) -> list[Figure]:
        """Both files of the pairs at the highest load beside each other."""
        shown = at_highest_load([pair.second for pair in self.pairs])
        found: list[Figure] = []
        for pair in self.pairs:
            if pair.second in shown:
                both = [
                    replace(pair.first, policy=self.first.name, predictor=None, reference=True, over_fcfs={}),
                    replace(pair.second, policy=self.second.name, predictor=None, over_fcfs=pair.ratios),
                ]
                drawn = [
                    each
                    for each in (latency_by_length(both), latency_over_time(both), ratio_intervals(both))
                    if each.data
                ]
                found += [replace(each, title=f"{each.title}: {pair.label}") for each in drawn]
        return found


def compare_runs(first: StoredRuns, second: StoredRuns) -> StoredComparison:
    """Pair the runs of two files by policy, predictor, router, place and offered load, else by rate.

    The same rate is another load where the engines differ. Two single runs are always a pair.
    """
    places = _common(_by_offered(first), _by_offered(second)) or _common(_by_rate(first), _by_rate(second))
    if not places and len(first.runs) == len(second.runs) == 1:
        places = [(0, 0)]
    if not places:
        names = ", ".join(dict.fromkeys(f"{run.label} at {run.offered}" for run in first.runs))
        raise InputError("has no run in common with the first file", source=second.name, hint=f"which has {names}")
    paired = first.content.get("content_hash") == second.content.get("content_hash")
    pairs = []
    for one, other in places:
        seeds = (first.by_seed(one), second.by_seed(other)) if paired else ([], [])
        pairs.append(
            StoredPair(
                first.runs[one],
                second.runs[other],
                {
                    figure_name(*what): _ratio(first.runs[one], second.runs[other], seeds, *what)
                    for what in (*SHOWN, *GAIN_FIGURES)
                },
            )
        )
    return StoredComparison(first, second, tuple(pairs))


def _by_offered(file: StoredRuns) -> dict[tuple[object, ...], int]:
    return {(run.label, run.place, run.offered): place for place, run in enumerate(file.runs)}


def _by_rate(file: StoredRuns) -> dict[tuple[object, ...], int]:
    rates = [file.rate(place) for place in range(len(file.runs))]
    known = [(run.label, run.place, rate) for run, rate in zip(file.runs, rates, strict=True)]
    return {key: place for place, key in enumerate(known) if key[-1] is not None}


def _common(first: Mapping[tuple[object, ...], int], second: Mapping[tuple[object, ...], int]) -> list[tuple[int, int]]:
    return [(first[key], place) for key, place in second.items() if key in first]


def _number(content: Mapping[str, Any], name: str, field: str) -> float:
    found = content.get(name)
    return float(found.get(field) or 0.0) if isinstance(found, Mapping) else 0.0


def _ratio(
    first: ReportedRun,
    second: ReportedRun,
    by_seed: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
    metric: str,
    statistic: str,
) -> Ratio:
    if len(by_seed[0]) == len(by_seed[1]) > 1:
        before, after = (SeedResults(seeds=tuple(seeds)) for seeds in by_seed)
        return after.over(before, metric, statistic)
    old, new = (run.latency.get(metric, {}).get(statistic, math.nan) for run in (first, second))
    return Ratio(new / old if old else math.nan, math.nan, math.nan)
