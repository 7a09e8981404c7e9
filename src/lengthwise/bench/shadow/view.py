"""`ShadowGain` as tables, with what the replay assumes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from lengthwise.reports.tables import Table, share

if TYPE_CHECKING:
    from lengthwise.bench.shadow.gain import ShadowGain
    from lengthwise.simulator import Spread
    from lengthwise.simulator.paired import Ratio

__all__ = ["tables"]

_GOOD: Final = 0.1
_POOR: Final = 0.25


def tables(found: ShadowGain) -> list[Table]:
    """Does the replay match, what would have been gained, how good were the predictions."""
    made = [_match(found), _gain(found)]
    return [*made, _accuracy(found)] if found.accuracy else made


def _match(found: ShadowGain) -> Table:
    rows = []
    measured, fcfs = found.measured, found.fcfs
    for name, seen, played in (
        ("TTFT", measured.ttft_s, fcfs.ttft_s),
        ("TPOT", measured.tpot_s, fcfs.tpot_s),
        ("E2E", measured.e2e_s, fcfs.e2e_s),
        ("per token", measured.per_token_s, fcfs.per_token_s),
    ):
        rows.append(
            [name, *_figures(seen), *_figures(played), _off(seen.mean, played.mean), _off(seen.p99, played.p99)]
        )
    columns = ["seconds", "measured mean", "p50", "p99", "replayed mean", "p50", "p99", "mean off by", "p99 off by"]
    return Table("Does the replay match? FCFS in the simulator beside what clients saw", columns, rows, _notes(found))


def _notes(found: ShadowGain) -> list[str]:
    spec, cost = found.engine.spec, found.engine.spec.cost
    seen = f"{found.replayed:,} of {found.requests:,} requests replayed, {found.duration_s:,.0f} s, {found.engine_url}"
    notes = [seen, f"verdict: {_verdict(found)}"]
    if found.engine.answers:
        notes.append(f"engine fitted to {found.engine.answers:,} streamed answers: {cost}")
    else:
        notes.append(f"engine as given: {spec.name}")
    notes.append(
        f"{spec.max_num_seqs} at once ({found.engine.slots_from}), {spec.kv_tokens:,} tokens of KV memory "
        f"({found.engine.memory_from}), {spec.max_num_batched_tokens:,} tokens a step; load {found.load:.2f}"
    )
    notes += [f"left out: {rows:,} requests, {why}" for why, rows in found.left_out.items()]
    if found.guessed_prompts:
        notes.append(f"{found.guessed_prompts:,} prompts' tokens are guessed from their size: the engine did not tell")
    if found.counted_answers:
        notes.append(f"{found.counted_answers:,} answers' tokens are counted by events: the engine did not tell")
    return notes


def _verdict(found: ShadowGain) -> str:
    off = abs(found.mismatch)
    told = f"the replayed mean E2E is {_off(found.measured.e2e_s.mean, found.fcfs.e2e_s.mean)} off"
    if off <= _GOOD:
        return f"{told}: the ratios below can be read as they are"
    if off <= _POOR:
        return f"{told}: read the ratios below as a direction, not as figures"
    return f"{told}: the ratios below say little; fit the engine with `lengthwise engine fit` and give it by --engine"


def _gain(found: ShadowGain) -> Table:
    rows = [["fcfs", "–", _seconds(found.fcfs.e2e_s.mean), _seconds(found.fcfs.e2e_s.p99), "1", "1", "1", "–", "–"]]
    for run in found.runs:
        e2e = run.summary.e2e_s
        ratios = [_ratio(each) for each in (run.mean_e2e, run.p99_e2e, run.per_token)]
        captured = [share(each) for each in (run.captured_e2e, run.captured_per_token)]
        rows.append([run.policy, run.predictions, _seconds(e2e.mean), _seconds(e2e.p99), *ratios, *captured])
    columns = [
        "policy",
        "predictions",
        "mean E2E s",
        "p99 E2E s",
        "mean over FCFS",
        "p99 over FCFS",
        "per token over FCFS",
    ]
    columns += ["of the true lengths' gain: mean", "per token"]
    notes = [
        "ratios below 1 are better; in brackets 95 % by a bootstrap of blocks of requests, the same for both",
        "assumed: the same arrivals whatever the latency (nobody retries or leaves sooner), and the same lengths",
        "assumed: FCFS in the engine so far, no prefixes found in its cache, all its traffic through this proxy",
        f"predictions come {1000 * found.prediction_delay_s:.1f} ms after their requests, as they did",
    ]
    return Table("What would have been gained", columns, rows, notes)


def _accuracy(found: ShadowGain) -> Table:
    rows = [
        [
            each.who,
            "–" if math.isnan(each.tau) else f"{each.tau:.3f}",
            f"{each.mae:.1f}",
            share(each.covered_50),
            share(each.covered_90),
        ]
        for each in found.accuracy
    ]
    notes = [
        f"{found.accuracy[0].answers:,} answers; one that ended at its max_tokens counts so, as its prediction does"
    ]
    if found.unsettled:
        notes.append(f"{found.unsettled:,} others were left or broke off, or their length was not told")
    columns = ["predictions", "tau", "MAE (tokens)", "in the 50 % interval", "in the 90 % interval"]
    return Table("How good the predictions were on this traffic", columns, rows, notes)


def _figures(spread: Spread) -> list[str]:
    return [_seconds(value) for value in (spread.mean, spread.p50, spread.p99)]


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def _off(measured: float, replayed: float) -> str:
    return "–" if math.isnan(measured + replayed) or measured <= 0 else f"{100 * (replayed / measured - 1):+.0f} %"


def _ratio(ratio: Ratio) -> str:
    return "–" if math.isnan(ratio.ratio) else f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
