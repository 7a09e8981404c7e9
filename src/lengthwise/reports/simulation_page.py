"""A grid of simulations as one HTML file with plots inside."""

from __future__ import annotations

from lengthwise.reports.interactive import interactive_page
from lengthwise.reports.simulation import tables
from lengthwise.reports.simulation_figures import latency_against_load, mean_against_tail
from lengthwise.reports.simulation_requests import cdfs, length_heatmap, over_time, who_waited
from lengthwise.simulator.grid_result import Grid

__all__ = ["html_report"]


def html_report(grid: Grid) -> str:
    """Everything over the levels, then what requests went through at the highest one."""
    figures = [
        latency_against_load(grid),
        mean_against_tail(grid),
        cdfs(grid),
        over_time(grid),
        length_heatmap(grid),
        who_waited(grid),
    ]
    return interactive_page(f"{grid.workload.name} on {grid.fleet}", figures, tables(grid))
