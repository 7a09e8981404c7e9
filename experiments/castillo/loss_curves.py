"""Measured loss curves, and a table that shows overfitting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.ticker import MaxNLocator

from lengthwise.errors import InputError
from lengthwise.reports.figures import COLOURS, GREY, figure, legend, png
from lengthwise.reports.tables import Table, signed

_PACKAGED: Final = "curves.json"


@dataclass(frozen=True)
class Training:
    """A training of scripts/gpu_train.py, all LLMs together: its metrics after every epoch, dropout on."""

    name: str
    settings: Mapping[str, Any]
    rows: tuple[Mapping[str, float], ...]

    def column(self, name: str) -> tuple[float, ...]:
        """One metric over the epochs."""
        return tuple(float(row[name]) for row in self.rows)


def load_trainings(path: Path | None = None) -> list[Training]:
    """Read metrics.json of scripts/gpu_train.py; by default the packaged trainings, those behind `default`."""
    try:
        file = resources.files("experiments.castillo") / _PACKAGED if path is None else path
        results = json.loads(file.read_text(encoding="utf-8"))["results"]
        return [
            Training(each["name"], each["settings"], tuple(each["curves"])) for each in results if each.get("curves")
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "give a metrics.json that scripts/gpu_train.py wrote"
        raise InputError("holds no loss curves", source=path or _PACKAGED, hint=hint) from error


def curve_table(trainings: Sequence[Training]) -> Table:
    """The loss curves in numbers: at the best epoch and at the end."""
    rows = []
    for each in trainings:
        held_out = each.column("held_out_loss")
        best = int(np.argmin(held_out))
        rows.append(
            (
                each.name,
                f"{best + 1} of {len(held_out)}",
                f"{each.column('train_loss')[best]:.3f} / {held_out[best]:.3f}",
                f"{each.column('train_loss')[-1]:.3f} / {held_out[-1]:.3f}",
                signed(held_out[-1] - held_out[best]),
                f"{each.column('tau')[best]:.3f} / {each.column('tau')[-1]:.3f}",
                f"{each.column('mae')[best]:.1f} / {each.column('mae')[-1]:.1f}",
                f"{100 * each.column('cover0.9')[best]:.1f} / {100 * each.column('cover0.9')[-1]:.1f} %",
            )
        )
    columns = ("", "best epoch", "loss there", "loss at the end", "rise", "tau", "MAE", "90 % intervals hold")
    notes = [
        "Loss: in training, dropout on / held out. tau, MAE, intervals: held out, at the best epoch / at the end.",
        *(f"{each.name}: {', '.join(f'{key} {value}' for key, value in each.settings.items())}" for each in trainings),
    ]
    return Table("Loss curves of the log-t prediction, all LLMs together", columns, rows, notes)


def curve_figure(trainings: Sequence[Training]) -> str:
    """Loss, tau and coverage over the epochs as PNG in base64."""
    title = "Log-t prediction, all LLMs together: held-out prompts over the epochs"
    panels = (
        ("held_out_loss", "Loss (dotted: in training)"),
        ("tau", "Kendall's tau"),
        ("cover0.9", "In 90 % interval"),
    )
    with figure(1, len(panels), size=(14, 4.4), title=title) as (drawing, axes):
        for each, colour in zip(trainings, COLOURS, strict=False):
            epochs = range(1, len(each.rows) + 1)
            for panel, (column, _) in zip(axes, panels, strict=True):
                panel.plot(epochs, each.column(column), color=colour, linewidth=1.8, label=each.name)
            axes[0].plot(epochs, each.column("train_loss"), color=colour, linewidth=1.2, linestyle=":")
        for panel, (_, name) in zip(axes, panels, strict=True):
            panel.set_title(name)
            panel.set_xlabel("epoch")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[2].axhline(0.9, color=GREY, linewidth=1.2)
        legend(axes[0])
        return png(drawing)
