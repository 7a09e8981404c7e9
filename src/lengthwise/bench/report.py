"""Tables and HTML page of `lengthwise bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lengthwise.bench.analysis import RUN_FIGURES, ArmResult, BenchResult, read_episodes, times
from lengthwise.bench.episodes import FCFS, Arm
from lengthwise.bench.store import Measured
from lengthwise.intervals import Ratio
from lengthwise.predictors.service import NO_PREDICTOR
from lengthwise.reports.latency_figures import figures
from lengthwise.reports.page import Document, Figure, Origin
from lengthwise.reports.runs import ReportedRun, pooled
from lengthwise.reports.tables import Table, multiple, share


def bench_tables(result: BenchResult) -> list[Table]:
    """Return one table per kind of episode."""
    kinds = list(dict.fromkeys(each.kind for each in result.arms))
    return [_table(kind, [each for each in result.arms if each.kind == kind], result) for kind in kinds]


def _table(kind: str, arms: list[ArmResult], result: BenchResult) -> Table:
    columns = [
        "policy, predictor", "mean E2E s", "mean gain", "per-token gain", "TTFT gain", "p99 s", "p99", "p99.9", "max",
        "makespan", "in SLO", "goodput/s", "gain captured", "tau", "preempted",
    ]  # fmt: skip
    rows = []
    for each in arms:
        ratio = each.ratios
        rows.append(
            [
                each.arm.label,
                f"{each.seconds['mean']:.3g}",
                times(ratio["mean"]),
                times(ratio["per_token"]),
                times(ratio["ttft"]),
                f"{each.seconds['p99']:.3g}",
                multiple(ratio["p99"], 2),
                multiple(ratio["p999"], 2),
                multiple(ratio["max"], 2),
                multiple(ratio["makespan"], 2),
                share(each.attained),
                f"{each.goodput_per_s:.3g}",
                share(each.captured.ratio),
                "–" if np.isnan(each.tau) else f"{each.tau:.2f}",
                str(each.preemptions),
            ]
        )
    settings = result.settings
    blocks = sorted({each.blocks for each in arms})
    notes = [
        (
            f"{'/'.join(map(str, blocks))} blocks of {settings['requests']} requests, capacity "
            f"{settings['capacity']:.3g} requests/s, {settings['engine']['max_num_seqs']} slots."
        ),
        (
            "Gains: fcfs / policy, above 1x is better. p99, p99.9, max, makespan: policy / fcfs, "
            "below 1 is better. 95 % intervals: paired bootstrap over blocks."
        ),
        f"SLO: {result.limits}; goodput counts requests within all limits.",
        "schedule() CPU ms per step: " + ", ".join(f"{each.arm.label} {each.schedule_ms:.3f}" for each in arms) + ".",
    ]
    return Table(f"{kind} episodes", columns, rows, notes)


def bench_runs(result: BenchResult, measured: Measured) -> list[ReportedRun]:
    """Return each arm of each kind of episode as a report shows it."""
    episodes = read_episodes(measured.rows, result.limits)
    found = []
    for each in result.arms:
        rows = list(episodes[each.kind, each.arm].values())
        is_base = each.arm == Arm(FCFS)
        found.append(
            ReportedRun(
                f"{each.arm.policy} (again)" if each.arm.copy else each.arm.policy,
                None if each.arm.predictor == NO_PREDICTOR else each.arm.predictor,
                offered=f"{each.kind} episodes",
                latency={"e2e_s": {name: each.seconds[name] for name in ("mean", "p50", "p99")}},
                over_fcfs={
                    ours: Ratio(1.0, 1.0, 1.0) if is_base else each.ratios[theirs]
                    for ours, theirs in RUN_FIGURES.items()
                },
                profile=pooled([row.summary.profile for row in rows]),
                within=each.within,
                slo=str(result.limits),
            )
        )
    return found


def bench_document(result: BenchResult, measured: Measured, origin: Origin) -> Document:
    """Return the document."""

    def drawn() -> list[Figure]:
        runs = bench_runs(result, measured)
        several = len({run.offered for run in runs}) > 1
        return figures([replace(run, place=run.offered if several else "") for run in runs])

    how = Table("How this was measured", ["setting", "value"], _setting(result))
    known = {**vars(result), "verdict": str(result.verdict)}
    return Document("lengthwise bench", [*bench_tables(result), how], known, result.verdict, drawn, origin)


def machine_of(result: BenchResult) -> str:
    """Return the machine of the engine in words."""
    machine = result.settings["machine"]
    if not isinstance(machine, Mapping):
        return str(machine)
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def _setting(result: BenchResult) -> list[list[str]]:
    rows = []
    for name in ("engine", "traffic", "data", "left_out", "machine"):
        found = result.settings[name]
        fields = found.items() if isinstance(found, Mapping) else [("", found)]
        rows += [[f"{name}: {field}".removesuffix(": ").replace("_", " "), str(value)] for field, value in fields]
    return [*rows, ["hours of episodes", f"{result.hours:.2f}"]]
