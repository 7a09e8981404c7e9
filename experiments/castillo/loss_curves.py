"""Loss curves: figures 6, 9 and A.3 of the paper by our trainings of its networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from experiments.castillo.rows import LLMS, WIDTHS
from experiments.figures import COLOURS, figure, legend, png
from lengthwise.errors import InputError
from lengthwise.reports.tables import Table

FIGURES: Final = {
    "Figure 6": ("Llama-3.2-1B", "mean", 200),
    "Figure 9": ("Llama-3.2-1B", "squared", 0),
    "Figure A.3, 1": ("Llama-3.2-3B", "squared", 0),
    "Figure A.3, 2": ("Llama-3.1-8B", "squared", 0),
}
"""LLM, target and bin width of the paper's loss curves."""


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of one network's trainings: (seeds, epochs)."""

    learn_loss: NDArray[np.float64]
    held_loss: NDArray[np.float64]
    learn_metric: NDArray[np.float64]
    held_metric: NDArray[np.float64]
    """Accuracy of a classifier; MAE of the mean in tokens of a regression."""

    @classmethod
    def of(cls, kept: pa.Table, llm: str, target: str, width: int, rule: str = "castillo") -> Curves:
        """Select the curves of a network from those that `python -m experiments.castillo train` kept."""
        chosen = kept
        for name, value in (("llm", llm), ("target", target), ("width", width), ("rule", rule)):
            chosen = chosen.filter(pc.equal(chosen[name], value))
        if not len(chosen):
            raise InputError(f"no loss curve of {llm}, {target}, {width}", hint="train it")
        chosen = chosen.sort_by([("seed", "ascending"), ("epoch", "ascending")])
        seeds = len(pc.unique(chosen["seed"]))
        return cls(
            *(
                chosen[name].to_numpy().reshape(seeds, -1)
                for name in ("learn_loss", "held_loss", "learn_metric", "held_metric")
            )
        )

    @property
    def rises(self) -> NDArray[np.float64]:
        """By seed: the held-out loss at the end over the smallest one. Above 1 the network has overfitted."""
        best = self.held_loss.min(axis=1)
        return np.asarray(np.divide(self.held_loss[:, -1], best, out=np.ones(len(best)), where=best > 0))


def paper_curve_table(kept: pa.Table) -> Table:
    """Overfitting of the paper's networks in numbers: held-out loss at the end over the best."""
    rows = []
    for llm in LLMS:
        kinds = [*(("mean", width) for width in WIDTHS), ("squared", 0), ("absolute", 0)]
        for place, (target, width) in enumerate(kinds):
            each = Curves.of(kept, llm, target, width)
            best = each.held_loss.argmin(axis=1)
            seed = np.arange(len(best))
            scale, unit = (100, " %") if width else (1, "")
            at_best, at_end = scale * each.held_metric[seed, best].mean(), scale * each.held_metric[:, -1].mean()
            in_training = scale * each.learn_metric[:, -1].mean()
            rows.append(
                (
                    llm if place == 0 else "",
                    f"classifier, {width} tokens" if width else f"regression, {target} error",
                    f"{best.min() + 1} to {best.max() + 1} of {each.held_loss.shape[1]}",
                    f"{each.rises.mean():.2f} ({each.rises.min():.2f} to {each.rises.max():.2f})",
                    f"{at_best:.1f} / {at_end:.1f}{unit}",
                    f"{in_training:.1f}{unit}",
                )
            )
    columns = ("LLM", "", "best epoch", "loss at the end over best (seeds)", "held out, best / end", "in training, end")
    notes = [
        "Figures 6, 9 and A.3 are pictures without numbers. Loss and metric are those of held-out train prompts.",
        "The metric is the accuracy, or the MAE of the mean. Each LLM alone, CASTILLO's rule, frozen encoder.",
    ]
    return Table("Overfitting of the paper's networks", columns, rows, notes)


def paper_curve_figure(kept: pa.Table, title: str) -> str:
    """One of FIGURES as PNG in base64: loss, and accuracy or MAE, in training and held out; a line per seed."""
    llm, target, width = FIGURES[title]
    each = Curves.of(kept, llm, target, width)
    what = f"classifier, {width} tokens per bin" if width else f"regression, {target} error"
    with figure(1, 2, size=(11, 4.2), title=f"{title}: {llm}, {what}, frozen encoder") as (drawing, axes):
        pairs = ((each.learn_loss, each.held_loss, "loss"), (each.learn_metric, each.held_metric, ""))
        for panel, (learned, held, name) in zip(axes, pairs, strict=True):
            for values, colour, label in ((learned, COLOURS[1], "in training"), (held, COLOURS[0], "held out")):
                lines = panel.plot(range(1, values.shape[1] + 1), values.T, color=colour, linewidth=1.3, alpha=0.8)
                lines[0].set_label(label)
            panel.set(title=name or ("accuracy" if width else "MAE of the mean (tokens)"), xlabel="epoch")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes[0])
        return png(drawing)
