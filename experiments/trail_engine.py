"""TRAIL end to end on a real engine: SmolLM2-135M's own answers in vLLM, with the probe on its hidden states.

Beside it the policy alone on the step times of an 8B LLM with random weights, whose hidden states say nothing: lengths
that Llama-3.1-8B gave are forced, and predictions are those of the prompt, or true lengths (`FORCED`).

Policies take turns on one engine in bursts that drain, with the method of `lengthwise bench`: blocks in which every arm
serves the same prompts with the same arrivals and seeds, and ratios to the fcfs of the same block. Prompts are those of
Alpaca (the paper's data) in CASTILLO, a corpus that neither probe nor predictor is trained on.

    python -m experiments run trail_engine                          # the tables, from the kept rows
    python -m experiments run trail_engine --set measure=yes --set results=out/trail-engine --set blocks=8
    python -m experiments run trail_engine --set measure=yes --set url=http://127.0.0.1:8311 --set results=out/gpu

Latencies are also counted in steps of the engine, from its step log: other work on the machine makes a step longer, but
does not change how many steps a request waits. The probe with the paper's settings (ten bins on 0 to 512, TRAIL's
smoothing, a reading at every token, nothing but the state and its age as input) is trained on the hidden states in
LENGTHWISE_DATA/smollm2, which are of fewer prompts than those of the packaged probe.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.study import Claim, Run, Study
from lengthwise.bench.analysis import BenchResult, analyse, episode_tables, read_episodes, times
from lengthwise.bench.episodes import FCFS, ORACLE, Arm, Kind, TrafficPlan
from lengthwise.bench.report import bench_tables
from lengthwise.bench.run import BenchPlan, BenchProgress, embedded_server, run_bench
from lengthwise.bench.store import BenchStore, read_measured
from lengthwise.intervals import Ratio, over_pairs
from lengthwise.predictors.probe import PAPER, Probe, load_probe, paper_bins, write_probe
from lengthwise.reports.tables import Table
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.step_log import read_steps
from lengthwise.vllm.bench_switch import TOKEN_VARIABLE
from lengthwise.workloads import Workload
from lengthwise.workloads.formats import write_workload

if TYPE_CHECKING:
    from lengthwise.training.probe.states import States

_RESULTS: Final = Path(__file__).parent / "results"
OWN: Final = tuple(_RESULTS / name for name in ("trail-engine", "trail-engine-h200", "trail-engine-h200-light"))
"""The LLM's own answers, with the probe."""
FORCED: Final = tuple(_RESULTS / name for name in ("h200-32-trail", "h200-256-trail"))
"""Forced lengths: `lengthwise bench` on 32 slots, and on 256 with full KV memory (docs/studies/trail.md)."""
KEPT: Final = (*OWN, *FORCED)
PROBED: Final = "default+probe"
_LIMITED: Final = "srpt:c=0.8"
_ORDER: Final = "srpt:c=0"
_PREDICTORS: Final = (PROBED, "default", ORACLE)
_MEANS: Final = {"mean": "mean E2E", "ttft": "mean TTFT"}
_LLM: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
_CORPUS: Final = "Alpaca"
_LONGEST_PROMPT: Final = 512
_MIN_BLOCKS: Final = 3  # the bootstrap interval of two blocks is the two values
_PAPER: Final = {"mean": 1.66, "ttft": 1.76}
"""Gains over vLLM's FCFS at the lower end of the paper's rates, c = 0.8."""


@dataclass(frozen=True)
class TrailEngineGrid:
    """What is read or measured."""

    results: tuple[Path, ...] = KEPT
    """A folder for each measurement; the first is resumed if it is incomplete."""
    measure: bool = False
    """Run the episodes that the first folder lacks; False: read what it has."""
    url: str | None = None
    """A server to measure on, with LENGTHWISE_BENCH_TOKEN as its token; None: the embedded engine."""
    machine: str | None = None
    """What that server runs on."""
    c: tuple[float, ...] = (0.0, 0.5, 0.8, 1.0)
    paper_probe: bool = True
    """Also c = 0.8 with a probe of the paper's settings."""
    blocks: int = 8
    requests: int = 48
    cap: int = 256
    slots: int = 4
    seed: int = 0
    hours: float | None = None
    """Start no block that would end later than this."""


@dataclass(frozen=True)
class TrailEngineResult:
    """The comparison of one measurement, by time and by steps of the engine."""

    name: str
    bench: BenchResult
    in_steps: Mapping[str, Mapping[str, Ratio]]
    """Mean E2E and TTFT of each arm (by its label) over fcfs's, in steps; empty without a step log."""
    order: Mapping[str, Mapping[str, Ratio]]
    """Mean E2E and TTFT of c = 0 over those of c = 0.8, by predictor."""
    step_ms: Mapping[str, tuple[float, float]]
    """Median and 90th percentile of the time from step to step, by the arm's label; empty without a step log."""
    other_lengths: int
    """Answers whose length is not that of the same request under fcfs."""
    answers: int
    capped: float
    """Share of answers that end at the cap."""


def measure(run: Run, grid: TrailEngineGrid) -> list[TrailEngineResult]:
    """Compare the arms of each folder, after running what the first lacks if asked to."""
    stores = [BenchStore(folder) for folder in grid.results]
    if grid.measure:
        _run_episodes(run, grid, stores[0])
    return [compare(store) for store in stores]


def compare(store: BenchStore) -> TrailEngineResult:
    """Read a measurement."""
    rows, cap = store.rows(), int(store.settings()["traffic"]["cap"])
    lengths: dict[tuple[str, int], dict[Arm, NDArray[np.int64]]] = {}
    for kind, arm, block, table in episode_tables(rows):
        lengths.setdefault((kind, block), {})[arm] = table["output_tokens"].to_numpy()
    other = sum(
        int((found != of_arm[Arm(FCFS)]).sum())
        for of_arm in lengths.values()
        for arm, found in of_arm.items()
        if arm != Arm(FCFS)
    )
    tokens = rows["output_tokens"].to_numpy()
    in_steps = _in_steps(store, rows) if store.steps.is_file() else {}
    step_ms = _step_ms(store) if store.steps.is_file() else {}
    capped = float((tokens >= cap).mean())
    bench = analyse(read_measured(store))
    return TrailEngineResult(store.folder.name, bench, in_steps, _orders(rows), step_ms, other, len(tokens), capped)


def _orders(rows: pa.Table) -> dict[str, dict[str, Ratio]]:
    """Return the order alone over limited preemption, for each predictor that has both."""
    blocks = {arm: found for (_, arm), found in read_episodes(rows, LatencyLimits()).items()}
    ratios = {}
    for predictor in _PREDICTORS:
        order, limited = blocks.get(Arm(_ORDER, predictor)), blocks.get(Arm(_LIMITED, predictor))
        if order is not None and limited is not None:
            ratios[predictor] = {
                name: over_pairs(*([each[b].figures[name] for b in order] for each in (order, limited)))
                for name in _MEANS
            }
    return ratios


def _in_steps(store: BenchStore, rows: pa.Table) -> dict[str, dict[str, Ratio]]:
    """Return mean E2E and TTFT over fcfs's, counted in steps of the engine."""
    starts = _starts(store)
    began = {(each["block"], _arm(each)): each for each in store.episodes()}
    found: dict[Arm, dict[int, dict[str, float]]] = {}
    for _, arm, block, table in episode_tables(rows):
        at = {
            name: np.searchsorted(starts, began[block, arm]["began"] + table[name].to_numpy())
            for name in ("arrival_s", "first_token_s", "finished_s")
        }
        found.setdefault(arm, {})[block] = {
            "mean": float((at["finished_s"] - at["arrival_s"]).mean()),
            "ttft": float((at["first_token_s"] - at["arrival_s"]).mean()),
        }
    base = found[Arm(FCFS)]
    return {
        arm.label: {
            name: over_pairs([blocks[b][name] for b in blocks], [base[b][name] for b in blocks])
            for name in ("mean", "ttft")
        }
        for arm, blocks in found.items()
        if arm != Arm(FCFS)
    }


def _step_ms(store: BenchStore) -> dict[str, tuple[float, float]]:
    """Return median and 90th percentile of the milliseconds from step to step while an arm serves."""
    starts = _starts(store)
    found: dict[str, list[NDArray[np.float64]]] = {}
    for each in store.episodes():
        first, last = np.searchsorted(starts, [each["began"], each["began"] + each["makespan_s"]])
        found.setdefault(_arm(each).label, []).append(1000 * np.diff(starts[first:last]))
    every = {label: np.concatenate(parts) for label, parts in found.items()}
    return {label: (float(np.median(ms)), float(np.quantile(ms, 0.9))) for label, ms in every.items()}


def _starts(store: BenchStore) -> NDArray[np.float64]:
    return np.sort(read_steps(store.steps)[0]["start_s"].to_numpy())


def _arm(episode: Mapping[str, Any]) -> Arm:
    return Arm(episode["policy"], episode["predictor"], episode["copy"])


def arms(grid: TrailEngineGrid, paper: Path | None) -> tuple[Arm, ...]:
    """Return fcfs, sjf on the prompts, srpt with the probe, and the paper's probe."""
    found = [Arm(FCFS), Arm("sjf", "default"), *(Arm(f"srpt:c={c:g}", PROBED) for c in grid.c)]
    return (*found, *([Arm(_LIMITED, f"{PROBED}:{paper}")] if paper is not None else []))


def _run_episodes(run: Run, grid: TrailEngineGrid, store: BenchStore) -> None:
    store.folder.mkdir(parents=True, exist_ok=True)
    prompts = store.folder / "prompts.parquet"
    if not prompts.is_file():
        write_workload(alpaca_prompts(run), prompts)
    paper = store.folder / "paper.lw" if grid.paper_probe else None
    if paper is not None and not paper.is_file():
        from lengthwise.training.probe.states import read_states

        states = read_states(Path(os.environ["LENGTHWISE_DATA"]) / "smollm2", "default", _LLM)
        write_probe(paper, paper_probe(states, load_probe("default").layer))
    traffic = TrafficPlan(
        llm=None,
        cap=grid.cap,
        longest_prompt=_LONGEST_PROMPT,
        workload=str(prompts),
        seed=grid.seed,
        own_answers=True,
    )
    plan = BenchPlan(
        [Kind.of("burst")],
        arms(grid, paper),
        grid.blocks,
        traffic,
        requests=grid.requests,
        limit_s=None if grid.hours is None else 3600 * grid.hours,
        machine=grid.machine,
    )
    progress = BenchProgress(lambda text: print(text, file=sys.stderr), run.report)  # noqa: T201  (it takes hours)
    server = (
        embedded_server(store, grid.slots, compiled=False, probes=plan.probes)
        if grid.url is None
        else nullcontext((grid.url, os.environ.get(TOKEN_VARIABLE, "")))
    )
    with store.locked(), server as (url, token):
        asyncio.run(run_bench(plan, store, url, token, progress))


def alpaca_prompts(run: Run) -> Workload:
    """Return the prompts of Alpaca."""
    samples = run.castillo().where(corpus=_CORPUS).table
    prompts = dict(zip(samples["prompt"].to_pylist(), samples["input_tokens"].to_pylist(), strict=True))
    columns = {
        "arrival_s": np.arange(float(len(prompts))),
        "input_tokens": np.array(list(prompts.values())),
        "output_tokens": np.ones(len(prompts), np.int64),  # the LLM decides
        "prompt": list(prompts),
    }
    return Workload.from_table(columns, name="alpaca")


def paper_probe(states: States, layer: int) -> Probe:
    """Train a probe with the paper's settings."""
    from lengthwise.training.data import LICENCES
    from lengthwise.training.probe.learn import ProbeRecipe, fit, inputs_of

    probe = fit(states, states.trained, layer, paper_bins(), inputs_of(states, prompt=False), ProbeRecipe())
    corpora = sorted(set(states.corpus[states.trained].tolist()))
    card = {
        "name": "paper",
        "predictor": "default",
        "data": {"corpora": corpora, "cap": states.cap},
        "licences": {corpus: LICENCES.get(corpus, "unknown") for corpus in corpora},
        "limits": ["TRAIL's settings, for the comparison with them"],
    }
    return replace(probe, smoothing=PAPER, every=1, llm=_LLM, card=card)


def tables(results: Sequence[TrailEngineResult]) -> list[Table]:
    """Return, for each measurement, the table of `lengthwise bench`, and the same in steps."""
    return [replace(table, title=f"{each.name}: {table.title}") for each in results for table in _tables(each)]


def _tables(result: TrailEngineResult) -> list[Table]:
    found = bench_tables(result.bench)
    if result.in_steps:
        rows = []
        for label, (median, high) in sorted(result.step_ms.items()):
            gains = result.in_steps.get(label)
            cells = [times(gains[name]) if gains else "–" for name in ("mean", "ttft")]
            rows.append([label, *cells, f"{median:.1f}", f"{high:.1f}"])
        columns = ["policy, predictor", "mean E2E", "TTFT", "ms a step, median", "90 %"]
        notes = ["A step that other work makes slower counts once; arrivals still follow the clock."]
        found.append(Table("The same in steps of the engine", columns, rows, notes))
    machine = result.bench.settings["machine"]
    shown = ", ".join(f"{name} {value}" for name, value in machine.items()) if isinstance(machine, dict) else machine
    rows = [
        ["answers", f"{result.answers:,}"],
        ["ended at the cap", f"{result.capped:.1%}"],
        ["with another length than under fcfs", f"{result.other_lengths:,}"],
        ["machine", str(shown)],
    ]
    return [*found, Table("The answers", ["", ""], rows)]


def claims(results: Sequence[TrailEngineResult]) -> list[Claim]:
    """Return the paper's gains beside ours, by time and by steps; fewer than three blocks are not compared."""
    found = []
    for result in results:
        enough = min(each.blocks for each in result.bench.arms) >= _MIN_BLOCKS
        by_time = {each.arm.label: each.ratios for each in result.bench.arms}
        for predictor in _PREDICTORS:
            limited, order = Arm(_LIMITED, predictor).label, Arm(_ORDER, predictor).label
            of_predictor = Arm(_LIMITED, predictor).predictor_label
            for unit, ratios in (("by time", by_time), ("in steps", result.in_steps)):
                setting = f"{result.name}, {of_predictor}, {unit}"
                for name, what in _MEANS.items():
                    for label, c, paper in ((limited, "0.8", _PAPER[name] if enough else None), (order, "0", None)):
                        if label in ratios:
                            ours = _inverse(ratios[label][name])
                            found.append(Claim(f"{what}, FCFS over c = {c}", paper, ours, setting))
            for name, ratio in result.order.get(predictor, {}).items():
                setting = f"{result.name}, {of_predictor}, by time"
                found.append(Claim(f"{_MEANS[name]}, c = 0 over c = 0.8", None, ratio, setting))
    return found


def _inverse(ratio: Ratio) -> Ratio:
    return Ratio(1 / ratio.ratio, 1 / ratio.high, 1 / ratio.low)


def _needs(grid: TrailEngineGrid) -> str | None:
    lacking = [str(folder) for folder in grid.results[grid.measure :] if not (folder / "bench.json").is_file()]
    if not lacking:
        return None
    return f"needs measured episodes in {', '.join(lacking)}: --set measure=yes"


def answer(results: Sequence[TrailEngineResult]) -> str:
    """The mean of limited preemption in each measurement."""
    parts = [
        f"{times(each.ratios['mean'])} in {result.name} ({each.arm.predictor_label}, {each.blocks} blocks)"
        for result in results
        for each in result.bench.arms
        if each.arm in (Arm(_LIMITED, PROBED), Arm(_LIMITED, "default"))
    ]
    return f"Mean E2E, FCFS over limited preemption (c = 0.8): {'; '.join(parts)}." if parts else ""


STUDY: Study[TrailEngineGrid, Sequence[TrailEngineResult]] = Study(
    name="trail_engine",
    title="TRAIL end to end on a real engine",
    question="What does limited preemption with a real probe gain in vLLM, on the LLM's own answers?",
    paper="TRAIL, figure of mean latency and TTFT over c",
    source="kept rows of `lengthwise bench`",
    grid=TrailEngineGrid(),
    quick=TrailEngineGrid(),
    minutes=(0.1, 0.1),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
    claims=claims,
    needs=_needs,
)
