"""A trained probe as tables, JSON and one HTML page, beside the figures of the TRAIL poster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lengthwise.intervals import Ratio
from lengthwise.reports.page import COLOURS, Document, Figure, Origin, axes, axis, panel
from lengthwise.reports.tables import Table, number, share
from lengthwise.reports.verdict import on_probe
from lengthwise.training.probe.errors_by_age import (
    BUCKETS,
    CONSTANT,
    HEAT,
    JOINT_SMOOTH,
    PROMPT_BY_AGE,
    PROMPT_ONLY,
    Way,
    bucket_name,
)

if TYPE_CHECKING:
    from lengthwise.training.probe.learn import Trained

_PAPER_ERROR_RATIO: Final = 2.66
"""TRAIL (arXiv 2410.01035): error from the prompt (BERT) over that of the probe."""
_HEATMAPS: Final = (PROMPT_ONLY, PROMPT_BY_AGE, JOINT_SMOOTH)


def plain(trained: Trained) -> dict[str, Any]:
    """Return the data for `to_json`."""
    return {
        "layer": trained.probe.layer,
        "smoothing": trained.probe.smoothing,
        "layers": trained.tried,
        "prompts": trained.prompts,
        "capped": trained.capped,
        "held_out": trained.scores,
        "new_to_predictor": trained.new_scores,
    }


def tables(trained: Trained) -> list[Table]:
    """Return the errors of layers, and of every predictor of the remaining length by tokens generated."""
    layers = Table(
        "Layers, on held-out training prompts",
        ("layer", "MAE", "smoothed", "carry", "trust", "start"),
        [
            [str(one.layer), f"{one.error:.1f}", f"{one.smoothed:.1f}", *(f"{value:g}" for value in weights)]
            for one in trained.tried
            for weights in [(one.smoothing.carry, one.smoothing.trust, one.smoothing.start)]
        ],
    )
    counts = trained.prompts
    title = f"Remaining length on {counts['held out']:,} held-out and test prompts: MAE by tokens generated"
    found = [layers, _comparison(title, trained.scores)]
    if trained.new_scores:
        title = f"The {counts['new']:,} of them that the predictor has not seen either"
        found.append(_comparison(title, trained.new_scores))
    return found


def probe_document(trained: Trained, out: Path, origin: Origin | None = None) -> Document:
    """The poster's heatmaps, errors by tokens generated, then the tables; the probe is in `out`."""
    prompt = next(score for score in trained.scores if score.name == PROMPT_ONLY)
    return Document(
        "TRAIL: the probe",
        tables(trained),
        {"out": str(out), **plain(trained)},
        on_probe(Ratio(*prompt.over_joint), _PAPER_ERROR_RATIO),
        lambda: [_heatmaps(trained), _by_tokens(trained)],
        origin,
    )


def _comparison(title: str, ways: list[Way]) -> Table:
    rows = [
        [
            way.name,
            *(number(each.mae, 1) for each in way.by_age),
            f"{way.overall.mae:.1f}",
            "{:.2f} [{:.2f}, {:.2f}]".format(*way.over_joint),
            number(way.overall.tau, 3),
            share(way.overall.coverage_90),
        ]
        for way in ways
    ]
    notes = [
        "Of the median, tokens; every state of an answer counts alike; a capped answer ends at the cap.",
        "ratio: this error over the last row's, and its 95 % interval, prompts drawn again with all their answers.",
        f"The paper has {_PAPER_ERROR_RATIO:g} (BERT over probe, Llama-3-8B).",
    ]
    columns = ("", *(bucket_name(*one) for one in BUCKETS), "all", "ratio", "tau", "in 90 %")
    return Table(title, columns, rows, notes)


def _heatmaps(trained: Trained) -> Figure:
    names = [f"{low:g}-{high:g}" for low, high in zip(HEAT.edges, HEAT.edges[1:], strict=False)]
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": names,
            "y": names,
            "z": trained.heat[name].T.tolist(),
            "colorscale": "Viridis",
            "zmin": 0,
            "zmax": 1,
            "showscale": place == 0,
            **panel(place),
        }
        for place, name in enumerate(_HEATMAPS)
    ]
    across, up = axis("truly remaining", type="category"), axis("predicted to remain", type="category")
    panels = [(across, up), *[(across, {**up, "title": {"text": ""}, "showticklabels": False})] * (len(_HEATMAPS) - 1)]
    layout = axes(panels, columns=len(_HEATMAPS), titles=_HEATMAPS)
    text = (
        "The poster's figure: of the states with a true remaining length (columns), the share predicted "
        "to have each (rows)."
    )
    return Figure("True against predicted", text, data, layout, height=460)


def _by_tokens(trained: Trained) -> Figure:
    names = [bucket_name(*bucket) for bucket in BUCKETS]
    shown = [way for way in trained.scores if way.name != CONSTANT]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": way.name,
            "x": names,
            "y": [each.mae for each in way.by_age],
            "line": {"color": COLOURS[number % len(COLOURS)]},
        }
        for number, way in enumerate(shown)
    ]
    layout = {"xaxis": axis("tokens generated", type="category"), "yaxis": axis("MAE, tokens", rangemode="tozero")}
    return Figure("Error by tokens generated", "Lower is better.", data, layout)
