"""A grid of simulations for programs: everything that tables and plots show, and each seed."""

from __future__ import annotations

from typing import Any

from lengthwise.simulator.grid_result import COMPARED, MEASURES, STATISTICS, Cell, Grid

__all__ = ["facts"]


def facts(grid: Grid) -> dict[str, Any]:
    """Ready for `to_json`."""
    return {
        "workload": grid.workload.name,
        "content_hash": grid.workload.content_hash,
        "requests": len(grid.workload),
        "fleet": str(grid.fleet),
        "routers": grid.routers,
        "pools": grid.pools,
        "refresh": grid.refresh,
        "seeds": grid.seeds,
        "slo": grid.slo,
        "capacity": {
            "requests_per_s": grid.capacity_per_s,
            "slots": grid.fleet.slots,
            "steady": all(capacity.steady for capacity in grid.capacities),
        },
        "predictors": {name: {"tau": grid.tau(name)} for name in grid.predictions},
        "runs": [_run(grid, cell) for cell in grid.cells],
    }


def _run(grid: Grid, cell: Cell) -> dict[str, Any]:
    return {
        "load": cell.level.load,
        "offered_per_s": cell.level.offered_per_s,
        "predictor": cell.predictor,
        "policy": cell.policy,
        "router": cell.router,
        **{measure: {name: cell.latency(measure, name) for name in STATISTICS} for measure in MEASURES},
        "over_fcfs": {
            f"{measure.removesuffix('_s')}_{name}": grid.ratio(cell, measure, name) for measure, name in COMPARED
        },
        "gain_captured": {
            "e2e": grid.gain_captured(cell, "e2e_s"),
            "per_token": grid.gain_captured(cell, "per_token_s"),
        },
        "requests_per_s": cell.mean(lambda s: s.requests_per_s),
        "output_tokens_per_s": cell.mean(lambda s: s.output_tokens_per_s),
        "goodput_per_s": cell.goodput(grid.slo),
        "within_slo": cell.within(grid.slo),
        "preemptions": cell.mean(lambda s: s.preemptions),
        "resubmissions": cell.mean(lambda s: s.resubmissions),
        "refused": cell.mean(lambda s: s.refused),
        "kv_mean": cell.kv_mean,
        "kv_peak": cell.kv_peak,
        "by_seed": [outcome.summary.to_dict() for outcome in cell.outcomes],
    }
