"""Pictures of `Alpaca20`: confusion and loss curves. Loads Matplotlib: import it only to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from experiments.alpaca20.run import BINNINGS
from experiments.alpaca20.study import Alpaca20, Binned
from lengthwise.reports.figures import COLOURS, figure, legend, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["pictures"]


def pictures(found: Alpaca20) -> dict[str, str]:
    """Title -> PNG in base64."""
    shown = list(found.binned.values())
    made = {}
    with figure(1, len(shown), size=(7.2 * len(shown), 6.4), title="True against predicted class") as (drawing, axes):
        for panel, binned in zip(axes, shown, strict=True):
            _confusion(panel, binned)
        made["Confusion"] = png(drawing)
    trained = [binned for binned in shown if binned.about.get("curves")]
    if trained:
        with figure(1, len(trained), size=(6.4 * len(trained), 4.2), title="Loss curves") as (drawing, axes):
            for panel, binned in zip(axes, trained, strict=True):
                _curves(panel, binned)
            made["Loss curves"] = png(drawing)
    return made


def _confusion(axes: Axes, binned: Binned) -> None:
    share = binned.confusion / np.maximum(binned.confusion.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0.0, vmax=max(float(share.max()), 0.01), origin="lower", aspect="equal")
    bins = len(share)
    labels = [f"≤ {edge:g}" for edge in binned.edges[1:-1]] + [f"> {binned.edges[-2]:g}"]
    axes.set_xticks(range(bins), labels, rotation=90, fontsize=7)
    axes.set_yticks(range(bins), labels, fontsize=7)
    axes.grid(visible=False)
    axes.set_xlabel("predicted (tokens)")
    axes.set_ylabel("true (tokens)")
    axes.set_title(f"{BINNINGS[binned.binning]}: share of each true class")


def _curves(axes: Axes, binned: Binned) -> None:
    rows = binned.about["curves"]
    epochs = [row["epoch"] for row in rows]
    for key, label, colour in (("train_loss", "training", COLOURS[0]), ("held_out_loss", "held out", COLOURS[1])):
        axes.plot(epochs, [row[key] for row in rows], color=colour, marker="o", markersize=4, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel("cross-entropy")
    axes.set_title(BINNINGS[binned.binning])
    legend(axes)
