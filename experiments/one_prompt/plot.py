"""The picture of `OnePrompt`. Loads Matplotlib: import it only to draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from experiments.one_prompt.study import OnePrompt
from lengthwise.lengths.families import GAMMA, LOGNORMAL, LOGT, WEIBULL
from lengthwise.reports.figures import COLOURS, GREY, figure, legend, png, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "picture"]

_BARS: Final = 40
_SHOWN: Final = (
    (LOGT, COLOURS[1], 2.4),
    (LOGNORMAL, COLOURS[0], 1.5),
    (WEIBULL, COLOURS[2], 1.1),
    (GAMMA, COLOURS[3], 1.1),
)


def draw(found: OnePrompt, path: Path) -> None:
    """Write the picture."""
    with _drawn(found) as (drawing, axes):
        _fill(axes, found)
        save(drawing, path)


def picture(found: OnePrompt) -> str:
    """The picture as PNG in base64."""
    with _drawn(found) as (drawing, axes):
        _fill(axes, found)
        return png(drawing)


def _drawn(found: OnePrompt) -> AbstractContextManager[tuple[Figure, list[Axes]]]:
    title = f"{len(found.lengths)} answers of {found.llm} to “{_short(found.prompt)}”"
    return figure(1, 2, size=(13.5, 4.8), title=title)


def _fill(axes: list[Axes], found: OnePrompt) -> None:
    _histogram(axes[0], found)
    _tail(axes[1], found)


def _histogram(axes: Axes, found: OnePrompt) -> None:
    """Bars and densities, as in the paper's figure; what was cut off stands in the last bar."""
    top = min(float(found.limit), 1.15 * float(np.quantile(found.lengths[~found.capped], 0.995)))
    edges = np.linspace(0.0, top, _BARS + 1)
    weights = np.full(len(found.lengths), 1.0 / (len(found.lengths) * (edges[1] - edges[0])))
    axes.hist(np.minimum(found.lengths, top), bins=edges.tolist(), weights=weights, color="#cfe1ee", edgecolor="white")
    x = np.linspace(1.0, top, 500)
    for family, colour, width in _SHOWN:
        each = found.fit(family.name)
        label = f"{each.name} ({each.loglik_gain:+.1f})"
        axes.plot(x, each.density(x), color=colour, linewidth=width, label=label)
    for name, prediction in found.predicted.items():
        axes.axvline(
            prediction.quantile(0.5), color=GREY, linestyle="--", linewidth=1.2, label=f"median that {name} predicts"
        )
    axes.set_xlim(0, top)
    axes.set_xlabel("tokens of the answer")
    axes.set_ylabel("density per token")
    axes.set_title("Fitted families (log-likelihood over log-normal's)")
    legend(axes, loc="upper right")


def _tail(axes: Axes, found: OnePrompt) -> None:
    """The share of answers that are longer, both axes logarithmic: where the families part."""
    n = len(found.lengths)
    whole = np.sort(found.lengths[~found.capped])
    beyond = 1.0 - np.arange(1, len(whole) + 1) / n
    # Nobody knows how far those go that were cut off: the staircase ends where they do.
    ends = np.append(whole, found.limit) if found.capped.any() else whole
    axes.plot(*_steps(ends, beyond), color="#22282d", linewidth=1.6, label="answers")
    x = np.geomspace(max(1.0, whole[0] * 0.7), found.limit, 400)
    for family, colour, width in _SHOWN:
        axes.plot(x, found.fit(family.name).survival(x), color=colour, linewidth=width, label=family.name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(0.4 / n, 1.3)
    axes.set_xlabel("tokens")
    axes.set_ylabel("share of answers that are longer")
    axes.set_title("The tail")
    legend(axes, loc="lower left")


def _steps(x: NDArray[np.float64], y: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """A staircase that starts at 1 and falls to y[i] at x[i]; the last x only ends it: no logarithm shows a 0."""
    yield np.repeat(x, 2)[:-1]
    yield np.repeat(np.concatenate([[1.0], y[: len(x) - 1]]), 2)[1:]


def _short(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
