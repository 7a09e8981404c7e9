"""Measured loss curves as lines, and as tables that show overfitting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.castillo_training import TRAININGS, TrainingRun
from lengthwise.errors import InputError
from lengthwise.reports.tables import Table, signed

_PACKAGED: Final = "curves.json"
_HEADS: Final[Mapping[str, str]] = {
    "classes": "classes of 200 tokens",
    "regression": "mean and std",
    "logt": "log-t prediction",
}


@dataclass(frozen=True)
class Line:
    """One training evaluated on one LLM, an entry per epoch."""

    training: TrainingRun
    llm: str
    train: tuple[float, ...]
    held_out: tuple[float, ...]
    figure: str
    """accuracy or mae: the metric of the next two fields."""
    train_figure: tuple[float, ...]
    held_out_figure: tuple[float, ...]

    @property
    def best(self) -> int:
        """The epoch, from 0, of the smallest held-out loss."""
        return int(np.argmin(self.held_out))

    @property
    def rise(self) -> float:
        """How far the held-out loss is above its smallest at the end: the cost of overfitting."""
        return self.held_out[-1] - self.held_out[self.best]

    @property
    def gap(self) -> float:
        """Held-out loss over training loss at the end."""
        return self.held_out[-1] - self.train[-1]


@dataclass(frozen=True)
class Training:
    """A training of the shipped kind (scripts/gpu_train.py): its metrics after every epoch, dropout on."""

    name: str
    settings: Mapping[str, Any]
    rows: tuple[Mapping[str, float], ...]

    def column(self, name: str) -> tuple[float, ...]:
        """One metric over the epochs."""
        return tuple(float(row[name]) for row in self.rows)


@dataclass(frozen=True)
class Curves:
    """All lines, and the machine they were measured on."""

    about: Mapping[str, Any]
    lines: tuple[Line, ...]
    trainings: tuple[Training, ...] = ()

    def of(self, head: str, llm: str) -> tuple[Line, ...]:
        """The lines of one head on one LLM."""
        return tuple(line for line in self.lines if line.training.head == head and line.llm == llm)


def load_curves(path: Path | None = None) -> Curves | None:
    """Read a file of scripts/gpu_studies.py or metrics.json of scripts/gpu_train.py; by default the packaged one."""
    if path is None:
        packaged = resources.files("experiments.castillo") / _PACKAGED
        return _read(packaged.read_text(encoding="utf-8"), _PACKAGED) if packaged.is_file() else None
    try:
        return _read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("cannot be read", source=path, hint="give a file that scripts/gpu_studies.py wrote") from error


def _read(text: str, source: str) -> Curves:
    try:
        tree = json.loads(text)
        if "results" in tree:
            tree = {"about": {}, "curves": {}, "trainings": tree["results"]}
        lines = [
            _line(training, llm, tree["curves"][training.name])
            for training in TRAININGS
            if tree["curves"].get(training.name)
            for llm in training.watched
        ]
        with_curves = [each for each in tree.get("trainings", ()) if each.get("curves")]
        trainings = [Training(each["name"], each["settings"], tuple(each["curves"])) for each in with_curves]
        return Curves(tree["about"], tuple(lines), tuple(trainings))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            "holds no loss curves", source=source, hint="give a file that scripts/gpu_studies.py wrote"
        ) from error


def _line(training: TrainingRun, llm: str, rows: list[dict[str, Any]]) -> Line:
    figure = "accuracy" if training.head == "classes" else "mae"
    looks = [row["watched"][llm] for row in rows]
    train, held_out, train_figure, held_out_figure = (
        tuple(float(look[part][what]) for look in looks) for what in ("loss", figure) for part in ("train", "held_out")
    )
    return Line(training, llm, train, held_out, figure, train_figure, held_out_figure)


def curve_tables(curves: Curves) -> list[Table]:
    """The loss curves in numbers: figures 6 and 9 and the appendix's, then trainings of the shipped kind."""
    made = [_studies(curves)] if curves.lines else []
    return [*made, _trainings(curves)] if curves.trainings else made


def _trainings(curves: Curves) -> Table:
    rows = []
    for each in curves.trainings:
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
        *(
            f"{each.name}: {', '.join(f'{key} {value}' for key, value in each.settings.items())}"
            for each in curves.trainings
        ),
    ]
    return Table("Loss curves of the log-t prediction, all LLMs together", columns, rows, notes)


def _studies(curves: Curves) -> Table:
    rows: list[tuple[str, ...]] = []
    begins = set()
    last = ""
    for line in sorted(curves.lines, key=lambda each: (list(_HEADS).index(each.training.head), each.llm)):
        group = f"{_HEADS[line.training.head]}, {line.llm}"
        if group != last:
            begins.add(len(rows))
        best = line.best
        digits = 3 if line.figure == "accuracy" else 1
        rows.append(
            (
                group if group != last else "",
                line.training.how,
                f"{best + 1} of {len(line.train)}",
                f"{line.train[best]:.3f} / {line.held_out[best]:.3f}",
                f"{line.train[-1]:.3f} / {line.held_out[-1]:.3f}",
                signed(line.rise),
                signed(line.gap),
                f"{line.figure} {line.held_out_figure[best]:.{digits}f} / {line.held_out_figure[-1]:.{digits}f}",
            )
        )
        last = group
    columns = ("", "trained on", "best epoch", "loss there", "loss at the end", "rise", "gap", "held-out figure")
    about = curves.about
    notes = [
        "Loss: on training prompts / on held-out prompts, dropout off for both. Figure: at best epoch / at the end.",
        "Rise: of the held-out loss from its best epoch to the last. Gap: held-out over training loss at the end.",
        "The paper on its figure 6 (classes): overfits, and dropout was no cure; on figures 9 and A.3: no overfitting.",
        "Its curves are pictures without numbers; ours are measured.",
        f"Measured on {about.get('machine', 'a machine')} in {about.get('seconds', 0)} s by scripts/gpu_studies.py.",
    ]
    if about.get("limit"):
        notes.append(f"A small version: {about['limit']:,} short prompts.")
    return Table("Loss curves (figures 6, 9 and A.3)", columns, rows, notes, frozenset(begins - {0}))
