"""From finished cells to what can be said: each order beside stock vLLM on the same requests, with intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from lengthwise.bench.evidence.intervals import captured, ratio
from lengthwise.bench.evidence.lines import Drain, Evidence, Line, Repeat
from lengthwise.bench.evidence.plan import ORACLE, STOCK, Cell
from lengthwise.simulator.metrics import Spread
from lengthwise.simulator.paired import Ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lengthwise.bench.evidence.store import Result

    Floats = NDArray[np.float64]
    Key = tuple[str, float | None, str, str]


def analyse(
    settings: Mapping[str, Any], results: Sequence[Result], ceiling: Mapping[str, float] | None = None
) -> Evidence:
    """Compare whatever is there; a cell without its stock counterpart has its own figures only."""
    groups: dict[Key, dict[int, Result]] = defaultdict(dict)
    for result in results:
        cell = result.cell
        groups[cell.setting, cell.load, cell.policy, cell.predictor][cell.repeat] = result
    lines = [_line(key, groups) for key in sorted(groups, key=_order) if key[1] is not None]
    drains = [_drain(key, groups) for key in sorted(groups, key=_order) if key[1] is None]
    last = results[-1].told if results else {}
    stock = {cell.setting: told for cell, told in ((r.cell, r.told) for r in results) if _measures_capacity(cell)}
    left_out: dict[str, int] = {}
    for result in results:
        left_out |= result.told["counts"]["left_out"]
    return Evidence(
        settings=settings,
        capacity={setting: told["summary"]["requests_per_s"] for setting, told in sorted(stock.items())},
        lines=lines,
        drains=drains,
        machine={key: value for key, value in last.get("machine", {}).items() if not key.startswith("load")},
        versions=last.get("versions", {}),
        left_out=left_out,
        busy=[result.told["machine"]["load_before"][0] for result in results],
        hours=sum(result.told["took_s"] for result in results) / 3600,
        kept=[
            pace["kept"]
            for pace in (result.told.get("pace") for result in results if result.cell.load is not None)
            if pace and pace["kept"]
        ],
        ceiling=ceiling,
    )


def _measures_capacity(cell: Cell) -> bool:
    return cell.stock and cell.load is None


def _order(key: Key) -> tuple[Any, ...]:
    setting, load, policy, predictor = key
    return setting, -1 if load is None else load, policy != STOCK, policy, predictor == ORACLE, predictor


def _line(key: Key, groups: Mapping[Key, Mapping[int, Result]]) -> Line:
    setting, load, policy, predictor = key
    mine = groups[key]
    pairs = _paired(mine, groups.get((setting, load, STOCK, "none"), {}))
    best = {} if predictor == ORACLE or policy == STOCK else groups.get((setting, load, policy, ORACLE), {})
    triples = [(ours, base, best[ours.cell.repeat]) for ours, base in pairs if ours.cell.repeat in best]
    runs = [mine[repeat] for repeat in sorted(mine)]
    ours, base = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    stock = policy == STOCK

    def over(figure: str, q: float | None = None, *, repeats: bool = True) -> Ratio:
        if stock or not pairs:
            return Ratio.none()
        return ratio([getattr(r, figure) for r in ours], [getattr(r, figure) for r in base], q, repeats=repeats)

    def gain(figure: str) -> Ratio:
        columns = [[getattr(triple[place], figure) for triple in triples] for place in (1, 0, 2)]
        return captured(*columns) if triples else Ratio.none()

    return Line(
        setting=setting,
        load=load,
        policy=policy,
        predictor=predictor,
        repeats=len(runs),
        n=sum(len(run.requests) for run in runs),
        e2e_s=_spread(runs, "e2e_s"),
        per_token_s=_spread(runs, "per_token_s"),
        ttft_s=_spread(runs, "ttft_s"),
        requests_per_s=float(np.mean([run.told["summary"]["requests_per_s"] for run in runs])),
        preemptions=_sum(run.told["summary"]["preemptions"] for run in runs),
        mean=over("e2e_s"),
        mean_by_requests=over("e2e_s", repeats=False),
        p50=over("e2e_s", 0.5),
        p99=over("e2e_s", 0.99),
        p99_by_requests=over("e2e_s", 0.99, repeats=False),
        per_token=over("per_token_s"),
        ttft=over("ttft_s"),
        throughput=math.nan if stock or not pairs else _makespans(base) / _makespans(ours),
        by_repeat=[_repeat(run, None if stock else dict(pairs).get(run)) for run in runs],
        gain_mean=gain("e2e_s"),
        gain_per_token=gain("per_token_s"),
        tau=_tau(runs, pairs) if predictor not in (ORACLE, "none") else math.nan,
        lengths_changed=_changed(pairs) if setting == "b" and not stock else math.nan,
        tokens=float(np.mean(np.concatenate([run.column("output_tokens") for run in runs]))),
        at_cap=float(np.mean(np.concatenate([run.column("output_tokens") >= _cap(run) for run in runs]))),
        predictor_cpu_ms=1000 * _sum(run.told["cpu"]["predictor_s"] for run in runs) / sum(map(_n, runs)),
        schedule_cpu_ms=_sum(run.told["cpu"].get("schedule_ms_per_step") for run in runs) / len(runs),
        engine_cpu_s=_sum(run.told["cpu"]["engine_s"] for run in runs) / sum(map(_n, runs)),
    )


def _repeat(run: Result, stock: Result | None) -> Repeat:
    own = Spread.of(run.e2e_s)
    theirs = None if stock is None else Spread.of(stock.e2e_s)
    pace = run.told.get("pace") or {}
    return Repeat(
        repeat=run.cell.repeat,
        mean_s=own.mean,
        p99_s=own.p99,
        requests_per_s=float(run.told["summary"]["requests_per_s"]),
        mean=math.nan if theirs is None else own.mean / theirs.mean,
        p99=math.nan if theirs is None else own.p99 / theirs.p99,
        behind_s=(pace.get("kept") or {}).get("behind_s", math.nan),
    )


def _paired(mine: Mapping[int, Result], stock: Mapping[int, Result]) -> list[tuple[Result, Result]]:
    """Runs with the same traffic: the same repeat, and as many requests."""
    both = sorted(set(mine) & set(stock))
    return [(mine[r], stock[r]) for r in both if len(mine[r].requests) == len(stock[r].requests)]


def _drain(key: Key, groups: Mapping[Key, Mapping[int, Result]]) -> Drain:
    setting, _, policy, predictor = key
    mine = groups[key][min(groups[key])]
    stock = groups.get((setting, None, STOCK, "none"), {}).get(mine.cell.repeat)
    own = _drained(mine)
    theirs = (math.nan,) * 3 if stock is None or _n(stock) != _n(mine) else _drained(stock)
    return Drain(setting, policy, predictor, _n(mine), *own, *(a / b for a, b in zip(own, theirs, strict=True)))


def _drained(result: Result) -> tuple[float, float, float]:
    """When a half, three quarters and all of the answers were there, from the first sent."""
    finished = np.sort(result.column("finished_s")) - result.column("sent_s").min()
    half, most = (math.ceil(share * len(finished)) - 1 for share in (0.5, 0.75))
    return float(finished[half]), float(finished[most]), float(finished[-1])


def _spread(runs: Sequence[Result], figure: str) -> Spread:
    return Spread.of(np.concatenate([getattr(run, figure) for run in runs]))


def _makespans(runs: Sequence[Result]) -> float:
    return sum(float(run.told["summary"]["makespan_s"]) for run in runs)


def _changed(pairs: Sequence[tuple[Result, Result]]) -> float:
    differ = [ours.column("output_tokens") != base.column("output_tokens") for ours, base in pairs]
    return float(np.mean(np.concatenate(differ))) if differ else math.nan


def _tau(runs: Sequence[Result], pairs: Sequence[tuple[Result, Result]]) -> float:
    """Against the length that came in the stock run, where there is one: in setting b that is the true length."""
    truth = {ours.cell.repeat: base for ours, base in pairs}
    taus = []
    for run in runs:
        length = truth.get(run.cell.repeat, run).column("output_tokens")
        taus.append(stats.kendalltau(run.column("prediction_mu"), length).statistic)
    return float(np.mean(taus))


def _sum(values: Any) -> float:  # noqa: ANN401  (numbers, and None where there is none)
    return math.fsum(math.nan if value is None else value for value in values)


def _n(result: Result) -> int:
    return len(result.requests)


def _cap(result: Result) -> float:
    return float(result.told.get("cap", 256))
