"""Compared runs as a verdict in words and figures: latency by output length and over time, ratios with intervals, load.

Every command that compares latencies (simulate, sweep, shadow, bench, replay, plan) describes its runs alike; a stored
JSON file holds the same description, so that a report can be made from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import numpy as np

from lengthwise.intervals import Ratio
from lengthwise.reports.page import (
    BASELINE_COLOUR,
    Figure,
    axes,
    axis,
    colours,
    interval_bars,
    panel,
    ratio_axis,
    tokens_axis,
)
from lengthwise.simulator.grid import BASELINE, USUAL_ROUTER, Measure, Statistic
from lengthwise.simulator.metrics import TRUTH, LatencyProfile

NAMES: Final = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "per_token_s": "per token"}
COMPARED: Final[tuple[tuple[Measure, Statistic], ...]] = (
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("ttft_s", "mean"),
    ("per_token_s", "mean"),
)
"""What runs are compared by."""
RATIOS: Final = {"e2e_mean": "mean E2E", "e2e_p99": "p99 E2E", "ttft_mean": "mean TTFT", "per_token_mean": "per token"}
MIN_GAIN: Final = 0.03
"""Share of the baseline's mean E2E. A smaller gain is not worth a change."""
MAX_TAIL: Final = 1.10
"""A p99 that is more than 10 % worse is a price that the verdict names."""
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
_MAX_ROWS: Final = 24


def predictor_label(predictor: str | None) -> str:
    """A predictor's name, with a warning where predictions are the true lengths."""
    return f"{TRUTH} (TRUE LENGTHS)" if predictor == TRUTH else predictor or ""


def figure_name(measure: str, statistic: str) -> str:
    """Return the name of a statistic among a run's ratios: `e2e_mean` for the mean of `e2e_s`."""
    return f"{measure.removesuffix('_s')}_{statistic}"


def seconds(value: float) -> str:
    """Format a duration in ms or s."""
    if math.isnan(value):
        return "–"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:,.2f} s"


def multiple(ratio: Ratio, digits: int = 3) -> str:
    """Format a ratio with its interval."""
    if math.isnan(ratio.ratio):
        return "–"
    if ratio.low == ratio.high == 1:
        return "1"
    value, low, high = (f"{each:.{digits}f}" for each in (ratio.ratio, ratio.low, ratio.high))
    return value if math.isnan(ratio.low) else f"{value} [{low}, {high}]"


@dataclass(frozen=True)
class ReportedRun:
    """One policy with one predictor and router at one level of load, as it is shown and stored."""

    policy: str
    predictor: str | None = None
    router: str = USUAL_ROUTER
    place: str = ""
    """Workload and fleet, where a report has several."""
    level: str = ""
    """The load in words."""
    load: float = math.nan
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Mean, p50, p90 and p99 in seconds, by measure (`e2e_s`)."""
    over_fcfs: Mapping[str, Ratio] = field(default_factory=dict)
    """Ratios by figure (`e2e_mean`), below 1 is better."""
    profile: LatencyProfile | None = None
    reference: bool = False
    """Whether the others are compared with it though it is not fcfs."""

    @property
    def name(self) -> str:
        """The policy, and the router if it is not the usual one."""
        return self.policy if self.router == USUAL_ROUTER else f"{self.policy} behind {self.router}"

    @property
    def label(self) -> str:
        """The name and the source of the predictions."""
        return f"{self.name}, {predictor_label(self.predictor)}" if self.predictor else self.name

    @property
    def in_words(self) -> str:
        """The name and the source of the predictions, inside a sentence."""
        if self.predictor is None:
            return self.name
        if self.predictor == "none":
            return f"{self.name} without predictions"
        return f"{self.name} with the predictor {predictor_label(self.predictor)}"

    @property
    def is_baseline(self) -> bool:
        """Whether the others of its level are compared with it."""
        return self.reference or (self.policy == BASELINE and all(each.ratio == 1 for each in self.over_fcfs.values()))

    def ratio(self, figure: str) -> Ratio:
        """Return a figure over the baseline's."""
        return self.over_fcfs.get(figure, Ratio.none())

    def to_dict(self) -> dict[str, Any]:
        """Return the run for JSON: measures are keys of their own."""
        plain = asdict(self)
        plain.pop("reference")
        return {**plain, **plain.pop("latency")}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> ReportedRun:
        """Read what `to_dict` has returned, after a round trip through JSON."""
        profile = content.get("profile")
        return cls(
            policy=str(content["policy"]),
            predictor=content.get("predictor"),
            router=content.get("router") or USUAL_ROUTER,
            place=content.get("place") or "",
            level=content.get("level") or "",
            load=_number(content.get("load")),
            latency={
                name: {each: _number(value) for each, value in content[name].items()}
                for name in NAMES
                if name in content
            },
            over_fcfs={
                name: Ratio(*(_number(each[part]) for part in ("ratio", "low", "high")))
                for name, each in (content.get("over_fcfs") or {}).items()
            },
            profile=None if profile is None else LatencyProfile.read(profile),
        )


def _number(value: Any) -> float:  # null in JSON is NaN
    return math.nan if value is None else float(value)


def pooled(profiles: Sequence[LatencyProfile]) -> LatencyProfile:
    """Return the mean of the tenths over seeds; over time, the first seed."""
    first = profiles[0]
    if any(len(each.tokens) != len(first.tokens) for each in profiles):
        return first
    tokens, e2e_s = (
        tuple(np.mean([getattr(each, name) for each in profiles], axis=0).tolist()) for name in ("tokens", "e2e_s")
    )
    return LatencyProfile(tokens, e2e_s, first.time_s, first.waiting, first.window_e2e_s)


def top_level(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Return the runs at the highest load, or at the last level where loads are not known."""
    loads = [run.load for run in runs if not math.isnan(run.load)]
    if loads:
        return [run for run in runs if run.load == max(loads)]
    return [run for run in runs if run.level == runs[-1].level]


def verdict(runs: Sequence[ReportedRun]) -> str:
    """Return a verdict on the best policy without true lengths at the highest load."""
    shown = top_level([run for run in runs if run.place == runs[0].place])
    base = next((run for run in shown if run.is_baseline), None)
    where = f" at {shown[0].level}" if shown[0].level else ""
    if shown[0].place and len({run.place for run in runs}) > 1:
        where += f" ({shown[0].place})"
    if base is None:
        fastest = min(shown, key=lambda run: run.latency["e2e_s"]["mean"])
        reason = "" if len(shown) == 1 else "; fcfs is not among the policies, so nothing is compared with it"
        return f"Mean E2E of {fastest.in_words} is {seconds(fastest.latency['e2e_s']['mean'])}{where}{reason}."
    others = [run for run in shown if not run.is_baseline]
    able = [run for run in others if run.predictor != TRUTH]
    judged = [run for run in able or others if not math.isnan(run.ratio("e2e_mean").ratio)]
    if not judged:
        mean = seconds(base.latency["e2e_s"]["mean"])
        return f"Mean E2E of {base.in_words} is {mean}{where}; nothing is compared with it."
    best = min(judged, key=lambda run: price(run.ratio("e2e_mean"), run.ratio("e2e_p99")))
    bound = "" if able else "With TRUE LENGTHS, which no server has: "
    return f"{bound}{_gain(best, base, where)} {_tail(best, base)}{_by_length(best, base)}"


Judgement = Literal["noise", "worse", "too small", "gain", "gain, worse tail"]


def judge(mean: Ratio, p99: Ratio) -> Judgement:
    """Return what a policy brings, by its mean and p99 of E2E over the baseline's."""
    if not math.isnan(mean.low) and mean.low <= 1 <= mean.high:
        return "noise"
    if mean.ratio > 1:
        return "worse"
    if mean.ratio > 1 - MIN_GAIN:
        return "too small"
    return "gain, worse tail" if p99.ratio > MAX_TAIL else "gain"


def price(mean: Ratio, p99: Ratio) -> float:
    """Mean E2E over the baseline's; a p99 that is more than 10 % worse counts against it. The best has the least."""
    return mean.ratio * (p99.ratio / MAX_TAIL if p99.ratio > MAX_TAIL else 1.0)


def _gain(best: ReportedRun, base: ReportedRun, where: str) -> str:
    mean = best.ratio("e2e_mean")
    ours = best.in_words
    found = judge(mean, best.ratio("e2e_p99"))
    sure = "" if math.isnan(mean.low) else f" (95 % interval {_change(mean.low)} to {_change(mean.high)})"
    if found == "noise":
        return (
            f"No difference beyond noise{where}: mean E2E of {ours} is {mean.ratio:.2f} of that of {base.name}{sure}."
        )
    if found == "worse":
        higher = f"{100 * (mean.ratio - 1):.0f} % higher"
        return f"Nothing is better than {base.name}{where}: mean E2E of {ours} is {higher}{sure}."
    small = ", too little to matter" if found == "too small" else ""
    return f"{ours} lowers mean E2E by {100 * (1 - mean.ratio):.0f} % against {base.name}{where}{sure}{small}."


def _change(ratio: float) -> str:
    percent = round(100 * (ratio - 1))
    return f"{percent:+d} %" if percent else "0 %"


def _tail(best: ReportedRun, base: ReportedRun) -> str:
    tail = best.ratio("e2e_p99").ratio
    if math.isnan(tail):
        return ""
    price = "The price: " if tail > MAX_TAIL else ""
    return f"{price}p99 E2E is {tail:.2f} times that of {base.name}. "


def _by_length(best: ReportedRun, base: ReportedRun) -> str:
    ours, theirs = best.profile, base.profile
    if ours is None or theirs is None or len(ours.e2e_s) != len(theirs.e2e_s) or len(ours.e2e_s) < 2:
        return ""
    short, long = (ours.e2e_s[place] / theirs.e2e_s[place] for place in (0, -1))
    tenth = f"The shortest tenth of answers takes {short:.2f} times as long as under {base.name}"
    return f"{tenth}, the longest {long:.2f} times."


def figures(runs: Sequence[ReportedRun]) -> list[Figure]:
    """Return the figures of each place; latency by load only if there are several loads."""
    found = []
    places = list(dict.fromkeys(run.place for run in runs))
    for place in places:
        here = [run for run in runs if run.place == place]
        suffix = f" ({place})" if len(places) > 1 else ""
        shown = top_level(here)
        drawn = [latency_by_length(shown), latency_over_time(shown), ratio_intervals(here), latency_by_load(here)]
        found += [
            Figure(each.title + suffix, each.text, each.data, each.layout, each.height) for each in drawn if each.data
        ]
    return found


def latency_by_length(runs: Sequence[ReportedRun]) -> Figure:
    """E2E by tenth of output length: in seconds, and over the baseline's where there is one."""
    known = [run for run in runs if run.profile is not None and run.profile.tokens]
    base = next((run for run in known if run.is_baseline), None)
    data: list[dict[str, Any]] = []
    ratios: list[float] = []
    for run in known:
        profile = _profile(run)
        data.append({**trace(run, known, 0, "lines+markers"), "x": profile.tokens, "y": profile.e2e_s})
        if base is not None and len(profile.e2e_s) == len(_profile(base).e2e_s):
            over = np.divide(profile.e2e_s, _profile(base).e2e_s).tolist()
            ratios += over
            data.append({**trace(run, known, 1, "lines+markers"), "x": profile.tokens, "y": over})
    tokens = tokens_axis("output tokens (median of each tenth)")
    panels = [(tokens, axis("seconds", rangemode="tozero"))]
    titles = ["mean E2E"]
    if ratios:
        panels.append((tokens, ratio_axis("", ratios)))
        titles.append(f"over {base.name if base else BASELINE}: below 1 is faster, above 1 slower")
    text = f"{_where(runs)}Requests in ten groups of equal size by output length."
    if len(known) > 1:
        text += " Click a name to hide it."
    return Figure("Latency by output length", text, data, axes(panels, columns=len(panels), titles=titles))


def latency_over_time(runs: Sequence[ReportedRun]) -> Figure:
    """Waiting requests and mean E2E over time."""
    known = [run for run in runs if run.profile is not None and run.profile.time_s]
    data: list[dict[str, Any]] = []
    for run in known:
        profile = _profile(run)
        data.append({**trace(run, known, 0), "x": profile.time_s, "y": profile.waiting})
        data.append({**trace(run, known, 1), "x": profile.time_s, "y": profile.window_e2e_s, "connectgaps": True})
    time = axis("seconds since the start", rangemode="tozero")
    panels = [(time, axis("requests", rangemode="tozero")), (time, axis("seconds", rangemode="tozero"))]
    titles = ["waiting for the first token", "mean E2E by time of sending"]
    text = f"{_where(runs)}{'' if len(known) == 1 else 'The first seed, or the first block.'}"
    return Figure("Queue and latency over time", text, data, axes(panels, columns=2, titles=titles))


def ratio_intervals(runs: Sequence[ReportedRun]) -> Figure:
    """The ratios to the baseline with their intervals, a panel per figure."""
    known = [run for run in runs if not run.is_baseline and not math.isnan(run.ratio("e2e_mean").ratio)]
    if len(known) > _MAX_ROWS:
        known = top_level(known)
    base = next((run.name for run in runs if run.is_baseline), BASELINE)
    levels = len({run.level for run in known}) > 1
    names = [f"{run.label}, {run.level}" if levels else run.label for run in known]
    shown = [name for name in RATIOS if any(not math.isnan(run.ratio(name).ratio) for run in known)]
    data: list[dict[str, Any]] = []
    panels = []
    for place, figure in enumerate(shown):
        ratios = [run.ratio(figure) for run in known]
        for run, name, ratio in zip(known, names, ratios, strict=True):
            bars = {} if math.isnan(ratio.low) else {"error_x": interval_bars([ratio])}
            data.append(
                {**trace(run, runs, place, "markers"), "x": [ratio.ratio], "y": [name], "showlegend": False, **bars}
            )
        ends = [end for ratio in ratios for end in (ratio.low, ratio.ratio, ratio.high)]
        order = {"categoryorder": "array", "categoryarray": names[::-1], "showticklabels": place % 2 == 0}
        panels.append((ratio_axis("", ends), axis("", type="category", **order)))
    layout = axes(panels, columns=min(2, len(panels)) or 1, titles=[f"{RATIOS[name]} over {base}" for name in shown])
    row = 80 + 28 * len(known)
    layout["grid"]["ygap"] = 60 / row
    line = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "line": {"width": 1, "color": BASELINE_COLOUR}}
    sides = [panel(place) for place in range(len(panels))]
    layout["shapes"] = [{**line, "xref": each["xaxis"], "yref": f"{each['yaxis']} domain"} for each in sides]
    text = f"Left of 1 is better than {base}. Bars: 95 % intervals, paired; without a bar there is none."
    return Figure("Ratios with their intervals", text, data, layout, height=60 + -(-len(panels) // 2) * row)


def latency_by_load(runs: Sequence[ReportedRun]) -> Figure:
    """Mean and p99 of E2E, and TTFT, over load; empty for a single load."""
    known = [run for run in runs if not math.isnan(run.load)]
    data: list[dict[str, Any]] = []
    shown = (("e2e_s", "mean"), ("e2e_s", "p99"), ("ttft_s", "mean"))
    if len({run.load for run in known}) > 1:
        for label in dict.fromkeys(run.label for run in known):
            line = sorted((run for run in known if run.label == label), key=lambda run: run.load)
            for place, (measure, statistic) in enumerate(shown):
                y = [run.latency[measure][statistic] for run in line]
                x = [run.load for run in line]
                data.append({**trace(line[0], known, place, "lines+markers"), "x": x, "y": y})
    unit = "requests/s" if known and known[0].level.endswith("/s") else "load"
    panels = [(axis(unit), axis("seconds", rangemode="tozero"))] * len(shown)
    titles = [f"{statistic} {NAMES[measure]}" for measure, statistic in shown]
    return Figure(
        "Latency by load",
        "Averaged over seeds, where there are several.",
        data,
        axes(panels, columns=len(shown), titles=titles),
    )


def trace(run: ReportedRun, among: Iterable[ReportedRun], place: int, mode: str = "lines") -> dict[str, Any]:
    """A run in one panel: a colour per policy and router, a dash per predictor; true lengths have open marks.

    What the others are compared with is grey.
    """
    together = list(among)
    base = next((each.name for each in together if each.is_baseline), BASELINE)
    colour = colours((each.name for each in together), base)[run.name]
    sources = list(dict.fromkeys(each.predictor for each in together if each.predictor is not None))
    dash = sources.index(run.predictor) if run.predictor in sources else 0
    return {
        "type": "scatter",
        "mode": mode,
        "name": run.label,
        "legendgroup": run.label,
        "line": {"color": colour, "dash": _DASHES[dash % len(_DASHES)]},
        "marker": {"color": colour, "size": 8, "symbol": "circle-open" if run.predictor == TRUTH else "circle"},
        **panel(place),
        "showlegend": place == 0,
    }


def _profile(run: ReportedRun) -> LatencyProfile:
    assert run.profile is not None  # noqa: S101  (callers select runs that have one)
    return run.profile


def _where(runs: Sequence[ReportedRun]) -> str:
    return f"At {runs[0].level}. " if runs and runs[0].level else ""
