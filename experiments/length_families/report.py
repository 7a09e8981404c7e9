"""A LengthFamilies study as tables and as one figure of six panels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from experiments.figures import (
    COLOURS,
    GREY,
    describe,
    dots,
    figure,
    legend,
    log_tokens,
    percent_axis,
    save,
)
from experiments.length_families.analysis import NUS, PAPER_PASS, GroupResult, LengthFamilies, Tail
from experiments.length_families.goodness import ConfidenceInterval, Power
from lengthwise.lengths.families import LOGNORMAL, LOGT
from lengthwise.llm_names import short_name
from lengthwise.reports.tables import Table, share, signed

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.axes import Axes

_HEADER = (
    "family",
    "KS pass, plain p > 5 %",
    "the paper's",
    "KS pass, refitted (95 % if true)",
    "held-out log-lik per sample - log-normal [95 %]",
    "same samples",
    "median shape",
)


def tables(result: LengthFamilies) -> list[Table]:
    """Return tables of all families over all rows, of groups, of what few samples can show, and of the tails."""
    found = [_overall(result)]
    if len(result.groups) > 1:
        found += [_groups(result), _tail_by_group(result)]
    return [*found, _evidence(result), _power(result.power), _hill(result)]


def _overall(result: LengthFamilies) -> Table:
    everything = result.groups[0]
    rows = [
        (
            found.family,
            share(found.ks_plain),
            share(PAPER_PASS[found.family]) if found.family in PAPER_PASS else "–",
            share(found.ks_refitted),
            _interval(found.held_out_gain),
            signed(found.loglik_gain),
            "–" if found.median_shape != found.median_shape else f"{found.median_shape:.3g}",
        )
        for found in everything.families
    ]
    notes = [
        f"{everything.rows:,} rows of {everything.prompts:,} prompts with {result.samples_per_row} samples each.",
        f"Source: {result.origin}.",
        *(f"Left out: {count:,} {rule}." for rule, count in result.left_out.items()),
        "The paper's: TIE, arXiv 2604.00499, its own data, more samples per prompt.",
        "Plain: parameters fitted to the tested samples count as known, as in the paper; nearly everything passes.",
        "Held out: half of a row fitted, the other half scored, both ways. Compare with the simulated truths below:",
        "from five samples a heavier tail wins even where lengths are log-normal.",
    ]
    return Table("Which family fits answer lengths", _HEADER, rows, notes)


def _groups(result: LengthFamilies) -> Table:
    names = [family.family for family in result.groups[0].families]
    rows = [
        (group.group, f"{group.rows:,}", *(share(family.ks_refitted) for family in group.families))
        for group in result.groups
    ]
    return Table(
        f"KS pass by {result.by}, critical values from refitting",
        (result.by, "rows", *names),
        rows,
        rule_before=frozenset({1}),
    )


def _tail_by_group(result: LengthFamilies) -> Table:
    at = NUS.index(LOGT.shape)
    rows = [
        (
            group.group,
            _interval(_gain(group)),
            _interval(group.evidence[at]),
            f"{group.best_nu:g}",
            share(group.repeats),
        )
        for group in result.groups
    ]
    columns = (
        "held out, per sample [95 %]",
        "integrated, per row [95 %]",
        "best common nu",
        "rows that repeat a length",
    )
    return Table(
        f"Log-t (nu=3.5) against log-normal by {result.by}",
        (result.by, *columns),
        rows,
        [
            "Repeat: four or more equal lengths in a row with a spread above 20 tokens. An LLM that repeats itself",
            "looks heavy-tailed to every family here; it is a sharp peak, not a long tail.",
        ],
        rule_before=frozenset({1}),
    )


def _evidence(result: LengthFamilies) -> Table:
    everything = result.groups[0]
    return Table(
        "Log-t against log-normal with location and scale integrated out, one nu for all rows",
        ("", *(f"nu={nu:g}" for nu in result.nus)),
        [
            ("per row", *(signed(gain.estimate) for gain in everything.evidence)),
            ("95 %", *(f"{gain.low:+.2f} {gain.high:+.2f}" for gain in everything.evidence)),
        ],
        [f"Natural logarithms, {everything.evidence_rows:,} rows drawn at random; above 0 favours log-t."],
    )


def _power(powers: tuple[Power, ...]) -> Table:
    rows = [
        (
            f"{power.truth}, {power.samples} samples",
            f"{power.prompts:,}",
            f"{share(power.passes_plain[LOGNORMAL.name])} / {share(power.passes_plain[LOGT.name])}",
            f"{share(power.passes_refitted[LOGNORMAL.name])} / {share(power.passes_refitted[LOGT.name])}",
            signed(power.held_out_gain[LOGT.name]),
            f"{signed(power.evidence_gain)} ± {1.96 * power.evidence_error:.3f}",
        )
        for power in powers
    ]
    return Table(
        "What a few samples per prompt can show: simulated prompts with a known truth",
        (
            "truth",
            "prompts",
            "plain KS passes log-normal / log-t",
            "refitted KS log-normal / log-t",
            "held out: log-t - log-normal per sample",
            "integrated: log-t - log-normal per prompt",
        ),
        rows,
    )


def _hill(result: LengthFamilies) -> Table:
    rows = [
        (tail.name, f"{tail.count:,}", f"{tail.alpha[0]:.2f} [{tail.alpha[1]:.2f}, {tail.alpha[2]:.2f}]")
        for tail in (*result.tails.over_median, *result.tails.lengths_by_llm)
    ]
    return Table(
        "Hill estimate of the tail's power from the largest 1 %",
        ("pooled values", "count", "alpha [95 %]"),
        rows,
        ["First lengths over their prompt's median (data, then simulated from each prompt's own fit), then lengths."],
        rule_before=frozenset({len(result.tails.over_median)}),
    )


def _gain(group: GroupResult) -> ConfidenceInterval:
    return next(family.held_out_gain for family in group.families if family.family == LOGT.name)


def _interval(interval: ConfidenceInterval) -> str:
    if interval.low == interval.high == 0:
        return "0"
    return f"{signed(interval.estimate)} [{interval.low:+.3f}, {interval.high:+.3f}]"


_DATA, _NORMAL, _T = "#22282d", COLOURS[2], COLOURS[1]
_DIAMOND: Final[dict[str, Any]] = {"s": 70, "marker": "D", "facecolor": "none", "linewidth": 1.6, "zorder": 4}
_ZERO: Final[dict[str, Any]] = {"color": GREY, "linestyle": "--", "linewidth": 1}
_MIN_TAIL_SAMPLES = 10


def draw(result: LengthFamilies, path: Path) -> None:
    """Write the figure."""
    title = f"Which family fits answer lengths: {result.rows:,} rows of up to {result.samples_per_row} samples"
    panels = (_passes, _held_out, _draw_evidence, _survival_by_llm, _over_median, _draw_hill)
    with figure(2, 3, size=(18, 10.5), title=title) as (drawing, axes):
        for place, draw_panel in zip(axes, panels, strict=True):
            draw_panel(place, result)
        save(drawing, path)


def _passes(axes: Axes, result: LengthFamilies) -> None:
    names = [family.family for family in result.groups[0].families]
    series = [(name, [group.families[i].ks_refitted for group in result.groups]) for i, name in enumerate(names)]
    dots(axes, [short_name(group.group) for group in result.groups], series)
    axes.axvline(0.95, **_ZERO)
    axes.annotate("if true", (0.95, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)
    percent_axis(axes)
    describe(axes, "Rows that pass KS, refitting accounted for")
    legend(axes, loc="upper center", bbox_to_anchor=(0.45, -0.06), ncols=3)


def _held_out(axes: Axes, result: LengthFamilies) -> None:
    shown = [family for family in result.groups[0].families if family.family != LOGNORMAL.name]
    places = np.arange(len(shown))
    for group in result.groups[1:]:
        found = {family.family: family.held_out_gain.estimate for family in group.families}
        axes.scatter([found[family.family] for family in shown], places, s=16, color=GREY, alpha=0.7, linewidth=0)
    gains = [family.held_out_gain for family in shown]
    centre = np.array([gain.estimate for gain in gains])
    errors = np.abs(np.array([[gain.low, gain.high] for gain in gains]).T - centre)
    axes.errorbar(centre, places, xerr=errors, fmt="o", color=_DATA, markersize=6, capsize=3, label="data, all rows")
    truths = [power for power in result.power if power.samples == _MIN_TAIL_SAMPLES]
    for truth, colour in zip(truths, (_NORMAL, _T), strict=False):
        values = [truth.held_out_gain[family.family] for family in shown]
        axes.scatter(values, places, edgecolor=colour, label=f"simulated, truth {truth.truth}", **_DIAMOND)
    if len(result.groups) > 1:
        axes.scatter([], [], s=16, color=GREY, label=f"data, each {result.by}")
    axes.axvline(0, **_ZERO)
    axes.set_xscale("symlog", linthresh=0.1)  # the GEV is far off; the others differ by a tenth of a nat
    ticks = (-1, -0.5, -0.2, -0.1, 0, 0.1, 0.2, 0.5)
    axes.set_xticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
    axes.set_xlim(-1.3, 0.6)
    axes.minorticks_off()
    axes.set_yticks(places, [family.family for family in shown])
    axes.invert_yaxis()
    x = "log probability per held-out sample, minus log-normal's (nats)"
    describe(axes, "Held out: half of a prompt's samples predict the rest", x=x, legend_at="lower right")


def _draw_evidence(axes: Axes, result: LengthFamilies) -> None:
    everything, *groups = result.groups
    for group in groups:
        axes.plot(result.nus, [gain.estimate for gain in group.evidence], color=GREY, linewidth=0.9, alpha=0.8)
        if (first := group.evidence[0].estimate) > 0.5:
            offset: dict[str, Any] = {"xytext": (4, 5), "textcoords": "offset points"}
            axes.annotate(short_name(group.group), (result.nus[0], first), fontsize=8, color="#5b6770", **offset)
    estimate, low, high = (
        [getattr(gain, name) for gain in everything.evidence] for name in ("estimate", "low", "high")
    )
    axes.fill_between(result.nus, low, high, color=_DATA, alpha=0.18, linewidth=0)
    axes.plot(result.nus, estimate, color=_DATA, linewidth=2.2, marker="o", markersize=4, label="data, all rows")
    if groups:
        axes.plot([], [], color=GREY, linewidth=0.9, label=f"data, each {result.by}")
    for truth, colour in zip(result.power[:2], (_NORMAL, _T), strict=False):
        label = f"simulated, truth {truth.truth}"
        axes.scatter([LOGT.shape], [truth.evidence_gain], edgecolor=colour, label=label, **_DIAMOND)
    axes.axhline(0, **_ZERO)
    log_tokens(axes, (1.5, 2, 3.5, 5, 10, 20, 50))
    y = "log evidence per row, minus log-normal's (nats)"
    title = "Location and scale integrated out: the tail alone"
    describe(axes, title, x="nu, the same for all rows", y=y, legend_at="upper right")


def _survival_by_llm(axes: Axes, result: LengthFamilies) -> None:
    for i, tail in enumerate(result.tails.lengths_by_llm):
        style = ("-", "--", ":")[i // len(COLOURS) % 3]
        colour, name = COLOURS[i % len(COLOURS)], short_name(tail.name)
        axes.plot(tail.x, tail.survival, color=colour, linestyle=style, linewidth=1.4, label=name)
    axes.set_yscale("log")
    log_tokens(axes, (10, 100, 1000, 10_000))
    axes.set_xlim(left=10)
    describe(axes, "P(length > x), pooled by LLM", x="tokens")
    legend(axes, loc="lower left", fontsize=7.5)


def _styled_tails(result: LengthFamilies) -> Iterator[tuple[Tail, dict[str, Any]]]:
    """Yield the data, then what is simulated from both families, with the style of their lines."""
    widths, dashes = (2.2, 1.5, 1.5), ("-", "--", "--")
    for tail, colour, width, dash in zip(result.tails.over_median, (_DATA, _NORMAL, _T), widths, dashes, strict=True):
        yield tail, {"color": colour, "linewidth": width, "linestyle": dash, "label": tail.name}


def _over_median(axes: Axes, result: LengthFamilies) -> None:
    for tail, style in _styled_tails(result):
        axes.plot(tail.x, tail.survival, **style)
    axes.set_yscale("log")
    log_tokens(axes, (1, 2, 5, 10, 30, 100))
    axes.set_xlim(left=1)
    title = "P(length / prompt's median > x)"
    describe(axes, title, x="length / its prompt's median", legend_at="upper right")


def _draw_hill(axes: Axes, result: LengthFamilies) -> None:
    for tail, style in _styled_tails(result):
        used = tail.hill.k / tail.count
        axes.fill_between(used, tail.hill.low, tail.hill.high, color=style["color"], alpha=0.12, linewidth=0)
        axes.plot(used, tail.hill.alpha, **style)
    axes.set_xscale("log")
    axes.set_ylim(0, 6)
    x, title = "share of the values used, the largest ones", "Hill estimate of length / prompt's median"
    describe(axes, title, x=x, y="alpha", legend_at="upper right")
