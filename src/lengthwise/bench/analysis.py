"""From measured episodes to ratios: each arm beside the fcfs of its block, on the same requests.

Ratios are arm / fcfs, below 1 is better: the geometric mean over blocks of the ratio within a block, with a paired
bootstrap over blocks (`intervals.over_pairs`). Latencies are those of `simulator.metrics`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import stats

from lengthwise.bench.episodes import FCFS, OF_TRUE_LENGTHS, ORACLE, Arm
from lengthwise.bench.store import Measured
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, ShareChange, draw_pairs, interval, over_pairs, share_change_over_seeds
from lengthwise.reports.verdict import Verdict, on_measured
from lengthwise.simulator.gains import Gain
from lengthwise.simulator.metrics import LatencyLimits, Summary, summarise

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EpisodeRows:
    """The requests of one episode, in order of arrival."""

    e2e_s: Floats
    output_tokens: NDArray[np.int64]
    mu: Floats
    summary: Summary
    within: NDArray[np.bool_]
    """Whether each is within the latency limits."""

    @classmethod
    def of(cls, table: pa.Table, limits: LatencyLimits) -> EpisodeRows:
        """Return the latencies of an episode's rows."""
        sent, first, finished, mu, preemptions = (
            table[name].to_numpy(zero_copy_only=False).astype(np.float64)
            for name in ("arrival_s", "first_token_s", "finished_s", "mu", "preemptions")
        )
        tokens = table["output_tokens"].to_numpy().astype(np.int64)
        times: dict[str, Any] = {
            "arrival_s": sent,
            "first_token_s": first,
            "finished_s": finished,
            "output_tokens": tokens,
        }
        summary = summarise(**times, preemptions=int(np.nansum(preemptions)))
        return cls(finished - sent, tokens, mu, summary, limits.met(**times))

    @property
    def figures(self) -> dict[str, float]:
        """The figures that are compared, in seconds."""
        return {
            "mean": self.summary.e2e_s.mean,
            "per_token": self.summary.per_token_s.mean,
            "ttft": self.summary.ttft_s.mean,
            "p50": self.summary.e2e_s.p50,
            "p99": self.summary.e2e_s.p99,
            "ttft_p50": self.summary.ttft_s.p50,
            "ttft_p99": self.summary.ttft_s.p99,
            "per_token_p99": self.summary.per_token_s.p99,
            "p999": float(np.quantile(self.e2e_s, 0.999)),
            "max": float(self.e2e_s.max()),
            "makespan": self.summary.makespan_s,
        }


FIGURES: Final = (
    "mean", "per_token", "ttft", "p50", "p99", "ttft_p50", "ttft_p99", "per_token_p99", "p999", "max", "makespan",
)  # fmt: skip
RUN_FIGURES: Final = {
    "e2e_mean": "mean",
    "e2e_p99": "p99",
    "ttft_mean": "ttft",
    "ttft_p50": "ttft_p50",
    "ttft_p99": "ttft_p99",
    "per_token_mean": "per_token",
    "per_token_p99": "per_token_p99",
}
"""The figures by their names in a report."""


@dataclass(frozen=True)
class ArmResult:
    """One arm in one kind of episode."""

    kind: str
    arm: Arm
    blocks: int
    requests: int
    seconds: Mapping[str, float]
    """Each figure, the mean over blocks."""
    ratios: Mapping[str, Ratio]
    """Each figure over fcfs's; for fcfs itself none."""
    by_block: Mapping[str, Sequence[float]]
    """The ratio within each block."""
    captured: Ratio
    """Share of the gain on the mean that the same policy has with true lengths."""
    attained: float
    """Share of requests within the latency limits, the mean over blocks."""
    within: ShareChange | None
    """The same beside fcfs's, over the blocks that both have; for fcfs itself none."""
    goodput_per_s: float
    """Requests per second of makespan within the limits, the mean over blocks."""
    tau: float
    """Kendall's tau-b of the predictions' medians with the lengths, the mean over blocks; NaN without predictions."""
    preemptions: int
    schedule_ms: float
    """CPU time of schedule() per step."""
    late_s: float
    """Largest delay of the client in sending a request."""


@dataclass(frozen=True)
class BenchResult:
    """All arms of a measurement."""

    settings: Mapping[str, Any]
    limits: LatencyLimits
    arms: Sequence[ArmResult]
    verdict: Verdict
    hours: float

    def arm(self, kind: str, policy: str, predictor: str) -> ArmResult:
        """Return one arm."""
        for each in self.arms:
            if (each.kind, each.arm.policy, each.arm.predictor) == (kind, policy, predictor):
                return each
        raise InputError(f"{policy} on {predictor} was not measured in {kind} episodes")


Blocks = dict[int, EpisodeRows]


def analyse(measured: Measured, limits: LatencyLimits | None = None) -> BenchResult:
    """Compare the arms of all complete blocks; by default with the latency limits of simulations."""
    limits = limits or LatencyLimits()
    episodes = read_episodes(measured.rows, limits)
    facts: dict[tuple[str, Arm], list[Mapping[str, Any]]] = defaultdict(list)
    for each in measured.episodes:
        facts[each["kind"], Arm(each["policy"], each["predictor"], each["copy"])].append(each)
    arms = [_arm_result(key, episodes, facts[key]) for key in sorted(episodes, key=_order)]
    hours = sum(each["makespan_s"] for each in measured.episodes) / 3600
    return BenchResult(measured.settings, limits, arms, verdict(arms), hours)


def read_episodes(rows: pa.Table, limits: LatencyLimits) -> dict[tuple[str, Arm], Blocks]:
    """Return the episodes of each kind and arm by block."""
    found: dict[tuple[str, Arm], Blocks] = defaultdict(dict)
    for kind, arm, block, table in episode_tables(rows):
        found[kind, arm][block] = EpisodeRows.of(table, limits)
    return dict(found)


def episode_tables(rows: pa.Table) -> Iterator[tuple[str, Arm, int, pa.Table]]:
    """Yield kind, arm, block and rows of each episode."""
    names = ("kind", "policy", "predictor", "copy", "block")
    keys = list(zip(*(rows[name].to_pylist() for name in names), strict=True))
    for key in dict.fromkeys(keys):
        kind, policy, predictor, copy, block = key
        yield (
            kind,
            Arm(policy, predictor, copy),
            block,
            rows.filter(pa.array([each == key for each in keys], pa.bool_())),
        )


def _order(key: tuple[str, Arm]) -> tuple[Any, ...]:
    kind, arm = key
    return kind, arm.policy != FCFS, arm.policy, arm.predictor in OF_TRUE_LENGTHS, arm.predictor, arm.copy


def _arm_result(
    key: tuple[str, Arm], episodes: Mapping[tuple[str, Arm], Blocks], facts: Sequence[Mapping[str, Any]]
) -> ArmResult:
    kind, arm = key
    ours, base = episodes[key], episodes.get((kind, Arm(FCFS)), {})
    paired = [] if arm == Arm(FCFS) else sorted(set(ours) & set(base))
    figures = {block: rows.figures for block, rows in ours.items()}
    by_block = {name: [figures[b][name] / base[b].figures[name] for b in paired] for name in FIGURES}
    return ArmResult(
        kind=kind,
        arm=arm,
        blocks=len(ours),
        requests=sum(len(rows.e2e_s) for rows in ours.values()),
        seconds={name: float(np.mean([each[name] for each in figures.values()])) for name in FIGURES},
        ratios={name: over_pairs(ratios, np.ones(len(ratios)).tolist()) for name, ratios in by_block.items()},
        by_block=by_block,
        captured=_captured(ours, base, episodes.get((kind, Arm(arm.policy, ORACLE)), {}), arm),
        within=share_change_over_seeds(*([float(each[b].within.mean()) for b in paired] for each in (ours, base)))
        if paired
        else None,
        attained=float(np.mean([rows.within.mean() for rows in ours.values()])),
        goodput_per_s=float(np.mean([rows.within.sum() / rows.summary.makespan_s for rows in ours.values()])),
        tau=_tau(ours.values()),
        preemptions=sum(rows.summary.preemptions for rows in ours.values()),
        schedule_ms=float(np.mean([each["schedule_ms"] for each in facts])) if facts else math.nan,
        late_s=max((each["late_s"] for each in facts), default=math.nan),
    )


def _captured(ours: Blocks, base: Blocks, best: Blocks, arm: Arm) -> Ratio:
    """Return (fcfs - arm) / (fcfs - the same policy on true lengths) of the mean E2E, with a bootstrap over blocks."""
    blocks = sorted(set(ours) & set(base) & set(best))
    if arm.predictor in (*OF_TRUE_LENGTHS, "none") or not blocks:
        return Ratio.none()
    mean = np.array([[each[b].figures["mean"] for b in blocks] for each in (ours, base, best)])

    def share(columns: Floats) -> Floats:
        return np.asarray((columns[1] - columns[0]) / (columns[1] - columns[2]))

    value = float(share(mean.mean(axis=1)))
    if len(blocks) == 1:
        return Ratio(value, math.nan, math.nan)
    return Ratio(value, *interval(share(mean[:, draw_pairs(len(blocks))].mean(axis=2))))


def _tau(episodes: Any) -> float:  # an iterable of EpisodeRows
    taus = []
    for rows in episodes:
        known = ~np.isnan(rows.mu)
        if known.sum() > 1:
            taus.append(stats.kendalltau(rows.mu[known], rows.output_tokens[known]).statistic)
    return float(np.mean(taus)) if taus else math.nan


def verdict(arms: Sequence[ArmResult]) -> Verdict:
    """Return in words whether a policy is worth turning on, judged by the arms that a server can have."""
    kinds = [each.kind for each in arms]
    kind = "burst" if "burst" in kinds else next((each for each in kinds if each != "backlog"), "backlog")
    here = [each for each in arms if each.kind == kind and each.arm.policy != FCFS]
    able = [each for each in here if each.arm.predictor not in OF_TRUE_LENGTHS]
    base = next((each for each in arms if each.kind == kind and each.arm == Arm(FCFS)), None)
    base_s = {} if base is None else {name: base.seconds[figure] for name, figure in RUN_FIGURES.items()}
    gains = [
        Gain(each.arm.label, {name: each.ratios[figure] for name, figure in RUN_FIGURES.items()}, base_s, each.within)
        for each in able
    ]
    return on_measured(gains, kind, max((each.blocks for each in able), default=0))


def times(ratio: Ratio) -> str:
    """Format fcfs / arm: how many times faster, with its interval."""
    if math.isnan(ratio.ratio):
        return "–"
    interval = "" if math.isnan(ratio.low) else f" [{1 / ratio.high:.2f}, {1 / ratio.low:.2f}]"
    return f"{1 / ratio.ratio:.2f}x{interval}"
