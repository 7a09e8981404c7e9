"""A probe's card as a page: what it was made from, how far off it is, and what it does not know.

All of it is what the file itself records, so that the page of the probe that ships is never edited by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lengthwise.errors import InputError
from lengthwise.predictors.probe.bins import ENTROPY, PROMPT
from lengthwise.training.probe.compare import JOINT_SMOOTH, PROMPT_BY_AGE, PROMPT_ONLY

if TYPE_CHECKING:
    from lengthwise.predictors.probe.probe import Probe

_TOLD: Final = {PROMPT: "what the prompt made one predict", ENTROPY: "the entropy of the next token"}
_FIRST: Final = "mae"  # in the figures of a way to know, before tau and the rest; the buckets come last
_SHARES: Final = ("covered_90",)


def error_ratio(probe: Probe) -> float:
    """The error of the prompt's prediction minus what was generated, over the probe's: the paper says 2.66 of its own.

    On held-out prompts, of the remaining length, over all states; by the probe's card.
    """
    try:
        figures = probe.card["figures"]
        return float(figures[PROMPT_ONLY][_FIRST]) / float(figures[JOINT_SMOOTH][_FIRST])
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError("its card has no figures", source="probe", hint="train it anew") from error


def card_page(probe: Probe, *, command: str) -> str:
    """The card in Markdown; `command` is what writes the page."""
    return "\n".join(
        [
            f"# The card of the probe `{probe.card.get('name', '')}`",
            "",
            f"Written by `{command}` from what the file itself records; what a probe is for: [trail.md](trail.md).",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {said} |" for name, said in _facts(probe).items()),
            "",
            *_figures(probe.card.get("figures", {}), "Held-out and official test prompts"),
            *_figures(probe.card.get("figures_new", {}), "Those of them that the predictor has not seen either"),
            "## Limits",
            "",
            *(f"- {limit}" for limit in probe.card.get("limits", ())),
            "",
        ]
    )


def _facts(probe: Probe) -> dict[str, str]:
    card, smoothing = probe.card, probe.smoothing
    said = card.get("data")
    data: Mapping[str, Any] = said if isinstance(said, dict) else {}
    counts = data.get("prompts", {})
    told = ["the tokens generated", *(_TOLD[name] for name in probe.inputs)]
    layers = ", ".join(f"{one['layer']} ({one['smoothed']:.1f})" for one in card.get("layers", ()))
    found = {
        "says": str(card.get("says", "")),
        "LLM": probe.llm,
        "layer": f"{probe.layer}" + (f"; error in tokens on held-out training prompts: {layers}" if layers else ""),
        "told besides": ", ".join(told),
        "prompts' predictions by": f"`{card['predictor']}`" if card.get("predictor") else "not recorded",
        "read": f"at the end of prefill, then every {probe.every} tokens",
        "bins": f"{len(probe.bins)}, to {probe.bins.edges[-1]:,.0f} tokens",
        "smoothing": f"carry {smoothing.carry:g}, trust {smoothing.trust:g}, start {smoothing.start:g}",
        "prompts": (
            f"{counts.get('trained', 0):,} trained on, {counts.get('held out', 0):,} held out or official test ones, "
            f"{counts.get('new', 0):,} of these new to the packaged predictors too"
        ),
        "answers cut off": f"{_cell('covered_90', data.get('capped'))}, at {data.get('cap', 0):,} tokens",
        "not trained on": ", ".join(data.get("left out", ())),
        "licences": ", ".join(f"{corpus} {licence}" for corpus, licence in card.get("licences", {}).items()),
    }
    return {name: text for name, text in found.items() if text}


def _figures(figures: Mapping[str, Mapping[str, Any]], title: str) -> list[str]:
    """A table of every way to know what remains, and by how much the probe is nearer than the prompt."""
    if not figures:
        return []
    columns = list(next(iter(figures.values())))
    named = {_FIRST: "all", "covered_90": "in 90 %"}
    lines = [f"## {title}", "", "Mean absolute error of the remaining length in tokens, by tokens generated.", ""]
    order = [name for name in columns if name not in (_FIRST, "tau", *_SHARES)] + [_FIRST, "tau", *_SHARES]
    lines += ["| | " + " | ".join(named.get(name, name) for name in order) + " |", "|---" * (len(order) + 1) + "|"]
    for way, found in figures.items():
        lines.append(f"| {way} | " + " | ".join(_cell(name, found.get(name)) for name in order) + " |")
    best = figures.get(JOINT_SMOOTH, {}).get(_FIRST)
    for way in (PROMPT_BY_AGE, PROMPT_ONLY):
        if best and way in figures:
            lines += ["", f'{figures[way][_FIRST] / best:.2f} times nearer than "{way}".']
    return [*lines, ""]


def _cell(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:.1f} %" if name in _SHARES else f"{value:.3f}" if name == "tau" else f"{value:.1f}"
