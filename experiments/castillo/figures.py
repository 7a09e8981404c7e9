"""Figures 6, 7, 9 and those of the appendix of the BERT-on-CASTILLO paper, with our values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.ticker import MaxNLocator

from experiments.castillo.loss_curves import Curves, Line
from experiments.castillo.paper import LLMS, WIDTHS, PaperComparison
from experiments.castillo_training import LLAMAS
from lengthwise.reports.figures import COLOURS, GREY, figure, legend, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLACES: Final = {LLAMAS[0]: "figure 9", LLAMAS[1]: "figure A.1", LLAMAS[2]: "figure A.2"}


def images(found: PaperComparison, curves: Curves | None) -> dict[str, str]:
    """Title -> PNG in base64; without curves only figure 7."""
    made = {"Figure 7: accuracy by LLM and bin width": _figure_7(found)}
    if curves is not None:
        made["Figure 6: loss and accuracy of classes"] = _figure_6(curves)
        made["Figures 9 and A.3: loss of the regression"] = _figure_9(curves, "regression")
        made["The same of the log-t prediction"] = _figure_9(curves, "logt")
        made["Trainings of the log-t prediction"] = _trainings(curves)
    return {name: data for name, data in made.items() if data}


def _figure_7(found: PaperComparison) -> str:
    tables = [table for table in (2, 3) if found.prompts[table]]
    title = "Figure 7: accuracy by bin width (class of the mean)"
    with figure(len(tables), len(LLMS), size=(13, 3.6 * len(tables) + 0.6), title=title) as (drawing, axes):
        for place, (table, llm) in enumerate((table, llm) for table in tables for llm in LLMS):
            cells = [
                next(
                    cell
                    for cell in found.cells
                    if (cell.table, cell.llm, cell.what, cell.reading) == (table, llm, f"Acc {width}", "mean")
                )
                for width in WIDTHS
            ]
            series = (
                (found.predictor, [cell.ours for cell in cells], COLOURS[0]),
                ("paper", [cell.paper for cell in cells], COLOURS[1]),
                ("constant", [cell.constant for cell in cells], GREY),
            )
            for name, values, colour in series:
                axes[place].plot(range(len(WIDTHS)), values, color=colour, marker="o", markersize=4, label=name)
            axes[place].set_xticks(range(len(WIDTHS)), [f"{width:,}" for width in WIDTHS])
            axes[place].set_ylim(0, 100)
            axes[place].set_xlabel("bin width (tokens)")
            axes[place].set_ylabel("accuracy (%)")
            axes[place].set_title(f"{llm}, {'six corpora' if table == 2 else 'Alpaca'}")
        legend(axes[0], loc="upper left")
        return png(drawing)


def _figure_6(curves: Curves) -> str:
    lines = curves.of("classes", LLAMAS[0])
    if not lines:
        return ""
    title = f"Figure 6: classes of 200 tokens, {LLAMAS[0]}; solid: held out, dotted: trained on"
    with figure(1, 2, size=(13, 4.8), title=title) as (drawing, axes):
        for line, colour in zip(lines, COLOURS, strict=False):
            _draw(axes[0], line, colour)
            _draw(axes[1], line, colour, of_figure=True)
        axes[0].set_title("Cross-entropy")
        axes[1].set_title("Accuracy")
        legend(axes[0])
        return png(drawing)


def _figure_9(curves: Curves, head: str) -> str:
    shown = [llm for llm in LLAMAS if curves.of(head, llm)]
    if not shown:
        return ""
    what = {"regression": "Regression of mean and std", "logt": "Log-t prediction"}[head]
    title = f"{what}; solid: held out, dotted: trained on"
    with figure(2, len(shown), size=(4.6 * len(shown), 7.6), title=title) as (drawing, axes):
        for place, llm in enumerate(shown):
            for line, colour in zip(curves.of(head, llm), COLOURS, strict=False):
                _draw(axes[place], line, colour)
                _draw(axes[len(shown) + place], line, colour, of_figure=True)
            axes[place].set_title(f"{llm} ({_PLACES[llm]}): loss")
            axes[len(shown) + place].set_title("MAE of the mean (tokens)")
        legend(axes[0])
        return png(drawing)


def _trainings(curves: Curves) -> str:
    if not curves.trainings:
        return ""
    title = "Log-t prediction, all LLMs together: held-out prompts over the epochs"
    panels = (
        ("held_out_loss", "Loss (dotted: in training)"),
        ("tau", "Kendall's tau"),
        ("cover0.9", "In 90 % interval"),
    )
    with figure(1, len(panels), size=(14, 4.4), title=title) as (drawing, axes):
        for each, colour in zip(curves.trainings, COLOURS, strict=False):
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


def _draw(axes: Axes, line: Line, colour: str, *, of_figure: bool = False) -> None:
    held_out, train = (line.held_out_figure, line.train_figure) if of_figure else (line.held_out, line.train)
    epochs = range(1, len(held_out) + 1)
    axes.plot(epochs, held_out, color=colour, linewidth=1.8, label=line.training.how)
    axes.plot(epochs, train, color=colour, linewidth=1.2, linestyle=":")
    if not of_figure:
        axes.plot([line.best + 1], [held_out[line.best]], color=colour, marker="o", markersize=5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
