"""One cell: a fresh engine, a few requests to warm it, the traffic, and what was seen of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.bench.evidence import seen
from lengthwise.bench.evidence.plan import ORACLE, Cell
from lengthwise.bench.evidence.together import CellBarrier, CellBarrierBrokenError
from lengthwise.bench.evidence.traffic import PLAYED, Sizes, Traffic
from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.engines.load import LoadPlan, LoadReport, run_load
from lengthwise.engines.pace import Pace, read_kept
from lengthwise.errors import InputError
from lengthwise.predictors.service import NO_PREDICTOR
from lengthwise.simulator.costs import StepCost
from lengthwise.workloads import Workload

_SILENCE_S: Final = 7200.0  # a request may wait for the whole of a cell
_WARM_TOKENS: Final = 8
PACE: Final = "pace.json"


class CellFailedError(Exception):
    """A cell that is not worth keeping: requests failed, or the engine was restarted under them."""


@dataclass(frozen=True)
class Run:
    """What a cell is run with, beside its traffic."""

    cell: Cell
    sizes: Sizes
    rate: float | None
    predictor: str
    """The name or the file that the engine loads; in setting b an adapted one."""
    true_tokens: NDArray[np.int64] | None
    """What an oracle tells; None in setting b until the stock run is there."""
    url: str | None = None
    model: str | None = None
    compiled: bool = False
    pace: StepCost | None = None

    def options(self, folder: Path) -> EngineOptions:
        """How the engine is started."""
        cell, sizes = self.cell, self.sizes
        plugin: dict[str, Any] = {"account": str(folder / "account.json"), "steps": str(folder / "steps.parquet")}
        if cell.setting == "a":
            plugin["forced_lengths"] = {"llm": PLAYED, "scale": sizes.scale}
        return EngineOptions(
            policy=cell.policy,
            predictor=NO_PREDICTOR if cell.predictor == ORACLE else self.predictor,
            max_num_seqs=sizes.slots,
            model=self.model,
            plugin=not cell.stock,
            compiled=self.compiled,
            plugin_options=plugin,
            pace=None if self.pace is None else Pace(self.pace, folder / PACE),
        )

    def bodies(self, traffic: Traffic) -> list[dict[str, Any]]:
        """What each request says beside its prompt. The true length reaches the plug-in from an oracle only."""
        found: list[dict[str, Any]] = [dict(each) for each in traffic.sampling] or [
            {"temperature": 0.0} for _ in traffic.prompts
        ]
        if not self.cell.stock:
            for row, body in enumerate(found):
                told: dict[str, Any] = {"cap": traffic.cap}
                if self.cell.predictor == ORACLE and self.true_tokens is not None:
                    told["expected_tokens"] = int(self.true_tokens[row])
                body["vllm_xargs"] = told
        return found


def run_cell(
    run: Run, traffic: Traffic, folder: Path, on_end: Callable[[], None], company: CellBarrier | None = None
) -> tuple[dict[str, Any], pa.Table]:
    """What is told of the cell, and its requests; `on_end` hears of each that is over."""
    began, load_before = time.time(), os.getloadavg()
    with _engine(run, folder) as (url, engine):
        asyncio.run(_warm(url, run))
        if company is not None:
            company.ready(engine)
        cpu_before, preempted_before = seen.session_cpu_s(engine), seen.preemptions(url)
        client_before = time.thread_time()
        workload = traffic.workload(run.rate)
        plan = LoadPlan(url, free=traffic.free, timeout_s=_SILENCE_S, extras=run.bodies(traffic))
        report = LoadReport(len(workload), plan)
        asyncio.run(_sent(workload, report, on_end, company))
        if report.interrupted:
            raise KeyboardInterrupt if company is None else CellBarrierBrokenError
        client_s = time.thread_time() - client_before
        engine_s = seen.difference(seen.session_cpu_s(engine), cpu_before)
        preemptions = seen.difference(seen.preemptions(url), preempted_before)
        restarts = 0 if engine is None else engine.restarts
        if company is not None:
            company.over()
    _check(report, restarts)
    predicted = seen.account(folder)
    told = {
        "repeat_seed": run.sizes.seed + run.cell.repeat,
        "seed": run.sizes.seed,
        "n": len(workload),
        "slots": run.sizes.slots,
        "cap": traffic.cap,
        "rate": run.rate,
        "began": began,
        "took_s": time.time() - began,
        "engine": {
            "url": run.url,
            **({} if run.url is not None else _plain(run.options(folder).model_dump())),
            "model": report.model,
        },
        "summary": {**report.summary().to_dict(), "preemptions": preemptions},
        "counts": {
            "requests": len(workload),
            "served": len(report.served),
            "errors": report.errors,
            "lengths_differ": None if traffic.free else report.lengths_differ,
            "client_late_s": report.late_s,
            "left_out": {each.rule: each.rows for each in traffic.left_out},
            "predictions": predicted,
        },
        "cpu": {
            "engine_s": engine_s,
            "client_s": client_s,
            "predictor_s": None if predicted is None else predicted.get("cpu_s"),
            "schedule_ms_per_step": seen.schedule_ms(folder),
        },
        "data": traffic.origin if traffic.packaged else "CASTILLO, official test prompts",
        "machine": {**seen.machine(), "load_before": load_before, "load_after": os.getloadavg()},
        "pace": None if run.pace is None else _pace(run.pace, folder),
        "versions": seen.versions(),
    }
    return told, _requests(run, traffic, report)


def compile_once(run: Run, folder: Path) -> None:
    """Start the engine and end it: what vLLM compiled is kept in its cache, for every engine after it."""
    with _engine(run, folder):
        pass


@contextmanager
def _engine(run: Run, folder: Path) -> Iterator[tuple[str, EmbeddedEngine | None]]:
    if run.url is not None:
        yield run.url, None
        return
    engine = EmbeddedEngine(run.options(folder))
    try:
        engine.start()
    except InputError as error:
        raise CellFailedError(str(error)) from error
    try:
        yield engine.url, engine
    finally:
        engine.stop()


async def _warm(url: str, run: Run) -> None:
    """A few requests that are not counted. Cut after a few tokens, they teach the history next to nothing."""
    n = max(2, run.sizes.slots)
    columns = {
        "arrival_s": np.zeros(n),
        "input_tokens": np.full(n, 8),
        "output_tokens": np.full(n, _WARM_TOKENS),
        "prompt": [f"Warm up, number {number}: say something about the weather." for number in range(n)],
    }
    workload = Workload.from_table(columns, name="warm-up")
    report = LoadReport(n, LoadPlan(url))
    await run_load(workload, report, lambda: None)
    if report.errors:
        raise CellFailedError(f"the engine did not answer the warm-up: {report.errors}")


async def _sent(
    workload: Workload, report: LoadReport, on_end: Callable[[], None], company: CellBarrier | None
) -> None:
    if company is not None:
        company.ends_with(asyncio.get_running_loop(), asyncio.current_task())
    await run_load(workload, report, on_end)


def _check(report: LoadReport, restarts: int) -> None:
    if restarts:
        raise CellFailedError(f"the engine died and was restarted {restarts} times")
    if report.errors:
        raise CellFailedError("requests failed: " + ", ".join(f"{n} {kind}" for kind, n in report.errors.items()))


def _requests(run: Run, traffic: Traffic, report: LoadReport) -> pa.Table:
    table = report.table()
    true = report_lengths(report) if run.true_tokens is None else run.true_tokens
    rows = table["row"].to_numpy()
    prompts = pa.array([traffic.prompts[row] for row in rows], pa.large_string())
    return table.append_column("prompt", prompts).append_column("true_tokens", pa.array(true[rows]))


def report_lengths(report: LoadReport) -> NDArray[np.int64]:
    """The lengths that answers had, by row."""
    found = np.zeros(report.requests, np.int64)
    for sample in report.samples:
        found[sample.row] = sample.output_tokens
    return found


def _pace(cost: StepCost, folder: Path) -> dict[str, Any]:
    """What steps were held to, and how well that was kept."""
    kept = read_kept(folder / PACE)
    return {"cost": asdict(cost), "kept": None if kept is None else asdict(kept)}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Without what names a place on this machine."""
    kept = {key: value for key, value in options.items() if key not in ("host", "port", "plugin_options", "pace")}
    kept["forced_lengths"] = options["plugin_options"].get("forced_lengths")
    if kept["predictor"].endswith(".lw"):
        kept["predictor"] = Path(kept["predictor"]).name
    return kept
