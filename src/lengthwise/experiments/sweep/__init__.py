"""Grids of simulations that are cached by content: what was computed once is not computed again."""

from lengthwise.experiments.sweep.cache import Cache
from lengthwise.experiments.sweep.config import SweepConfig, read_sweep
from lengthwise.experiments.sweep.run import Pieces, Swept, run_sweep
from lengthwise.experiments.sweep.workers import in_processes, on_ray

__all__ = ["Cache", "Pieces", "SweepConfig", "Swept", "in_processes", "on_ray", "read_sweep", "run_sweep"]
