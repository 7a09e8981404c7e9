"""The paper's figures 1 to 4 as one picture. Loads Matplotlib: import it only to draw."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lengthwise.reports.figures import COLOURS, boxes, figure, legend, save, short_name
from lengthwise.workloads.castillo_profile import CastilloProfile, trimmed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_FIGURE_1 = "Llama-3.2-1B"
_FIGURE_2 = ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B")


def draw(profile: CastilloProfile, path: Path) -> None:
    """Write the figure."""
    with figure(2, 2, size=(14, 9.5), title=f"CASTILLO: {profile.rows:,} rows, ten samples each") as (drawing, axes):
        _raw(axes[0], profile)
        _trimmed(axes[1], profile)
        _by_llm(axes[2], profile.means, "Figure 3: mean length per prompt (top 1 % left out)", "tokens")
        _by_llm(axes[3], profile.stds, "Figure 4: std of length per prompt (top 1 % left out)", "tokens")
        save(drawing, path)


def _raw(axes: Axes, profile: CastilloProfile) -> None:
    for llm, lengths in profile.lengths.items():
        if short_name(llm) == _FIGURE_1:
            axes.hist(lengths, bins=np.arange(0, 15_251, 250).tolist(), color=COLOURS[0])
    axes.set_yscale("log")
    axes.set_xlabel("output tokens")
    axes.set_ylabel("samples")
    axes.set_title(f"Figure 1: raw lengths of {_FIGURE_1}, mass at both ends")


def _trimmed(axes: Axes, profile: CastilloProfile) -> None:
    shown = {short_name(llm): trimmed(lengths) for llm, lengths in profile.lengths.items()}
    shown = {name: shown[name] for name in _FIGURE_2 if name in shown}
    longest = max((values.max() for values in shown.values()), default=1.0)
    for (name, values), colour in zip(shown.items(), COLOURS, strict=False):
        axes.hist(
            values,
            bins=np.linspace(0, longest, 61).tolist(),
            histtype="stepfilled",
            alpha=0.22,
            color=colour,
            density=True,
        )
        axes.hist(
            values,
            bins=np.linspace(0, longest, 61).tolist(),
            histtype="step",
            linewidth=1.8,
            color=colour,
            density=True,
            label=name,
        )
    axes.set_xlim(0, longest)
    axes.set_yticks([])
    axes.set_xlabel("output tokens")
    axes.set_title("Figure 2: length distributions (top 1 % left out)")
    legend(axes, loc="upper right")


def _by_llm(axes: Axes, values: Mapping[str, NDArray[np.float64]], title: str, unit: str) -> None:
    boxes(axes, {short_name(llm): trimmed(data) for llm, data in values.items()})
    axes.set_xlim(left=0)
    axes.set_xlabel(unit)
    axes.set_title(title)
