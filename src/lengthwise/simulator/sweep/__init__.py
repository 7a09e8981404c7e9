"""Grids of simulations that are cached by content: what was computed once is not computed again."""

from lengthwise.simulator.sweep.cache import Cache
from lengthwise.simulator.sweep.config import SweepConfig, read_sweep
from lengthwise.simulator.sweep.run import Pieces, Swept, run_sweep
from lengthwise.simulator.sweep.workers import in_processes, on_ray

__all__ = ["Cache", "Pieces", "SweepConfig", "Swept", "in_processes", "on_ray", "read_sweep", "run_sweep"]
