"""What a policy brings over another on the same requests: the figures people pay for, and one sentence about them.

Every verdict on policies (simulate, plan, sweep, bench, report, what-if, dashboard) is made here from the same figures:
mean and p99 of E2E and of per-token latency, median and p99 of TTFT, and the share of requests within the limits.
A change is negative where the policy is lower: "-13 % [-18, -7]".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from lengthwise.intervals import Ratio, ShareChange, over_seeds, share_change
from lengthwise.simulator.grid import Metric, Statistic, figure_name, paired_ratio

if TYPE_CHECKING:
    from lengthwise.simulator.metrics import LatencyLimits
    from lengthwise.simulator.outcome import Outcome

GAIN_FIGURES: Final[Mapping[tuple[Metric, Statistic], str]] = {
    ("e2e_s", "mean"): "mean E2E",
    ("e2e_s", "p99"): "p99 E2E",
    ("ttft_s", "p50"): "median TTFT",
    ("ttft_s", "p99"): "p99 TTFT",
    ("per_token_s", "mean"): "mean per-token latency",
    ("per_token_s", "p99"): "p99 per-token latency",
}
"""The latencies by which a policy is judged."""
_TITLES: Final = {figure_name(*what): title for what, title in GAIN_FIGURES.items()}
_TAILS: Final = frozenset(figure_name(*what) for what in GAIN_FIGURES if what[1] == "p99")
MIN_CHANGE: Final = 0.03
"""Share of the baseline's figure. A smaller change of a mean or median does not matter."""
MAX_TAIL: Final = 1.10
"""A p99 that is more than 10 % worse is a price that the verdict names."""
SAME_SHARE: Final = 0.01
"""Shares of requests within their limits that differ by less are as good."""
_MIN_S: Final = {"ttft": 0.05, "per_token": 0.001}
"""Seconds. A smaller change of TTFT or of per-token latency is not felt."""
_NAMED: Final = 3  # figures in a headline

Judgement = Literal["noise", "worse", "too small", "gain", "gain, worse tail", "trade"]


@dataclass(frozen=True)
class Gain:
    """The figures of a policy over those of a baseline on the same requests."""

    label: str
    over: Mapping[str, Ratio]
    """Ratios by figure (`e2e_mean`), below 1 is better; a figure that is not known is missing or NaN."""
    base_s: Mapping[str, float] = field(default_factory=dict)
    """The baseline's figures in seconds, where known: a change of a few milliseconds of TTFT does not matter."""
    within: ShareChange | None = None
    """Shares of requests within the limits."""

    @classmethod
    def of(cls, label: str, ours: Sequence[Outcome], base: Sequence[Outcome], slo: LatencyLimits | None = None) -> Gain:
        """Return the gain of simulations of the same requests, seed by seed."""
        over, base_s = {}, {}
        for metric, statistic in GAIN_FIGURES:
            values, theirs = (
                [float(getattr(getattr(each.summary, metric), statistic)) for each in outcomes]
                for outcomes in (ours, base)
            )
            name = figure_name(metric, statistic)
            single = len(ours) == 1
            over[name] = paired_ratio(ours[0], base[0], metric, statistic) if single else over_seeds(values, theirs)
            base_s[name] = sum(theirs) / len(theirs)
        within = None if slo is None else share_change(*([each.within(slo) for each in runs] for runs in (ours, base)))
        return cls(label, over, base_s, within)

    def ratio(self, figure: str) -> Ratio:
        """Return a figure over the baseline's."""
        return self.over.get(figure, Ratio.none())

    @property
    def better(self) -> list[str]:
        """Figures that are lower beyond noise by enough to matter, the largest change first."""
        return sorted((each for each in _TITLES if self._side(each) < 0), key=lambda each: self.over[each].ratio)

    @property
    def worse(self) -> list[str]:
        """Figures that are higher beyond noise by enough to matter, the largest change first."""
        return sorted((each for each in _TITLES if self._side(each) > 0), key=lambda each: -self.over[each].ratio)

    @property
    def share_side(self) -> int:
        """1 if more requests are within the limits beyond noise, -1 if fewer, else 0."""
        found = self.within
        if found is None or not abs(found.change) > SAME_SHARE or found.low <= 0 <= found.high:
            return 0
        return 1 if found.change > 0 else -1

    @property
    def judgement(self) -> Judgement:
        """Whether it is worth a change: what got better, and what that cost."""
        better, worse = bool(self.better) or self.share_side > 0, self.worse
        if better and self.share_side < 0:
            return "trade"
        if better:
            return "gain" if not worse else "gain, worse tail" if _TAILS.issuperset(worse) else "trade"
        if worse or self.share_side < 0:
            return "worse"
        known = [each for name in _TITLES if not math.isnan((each := self.ratio(name)).ratio)]
        return "noise" if all(_is_noise(each) for each in known) else "too small"

    @property
    def price(self) -> float:
        """Mean E2E and per-token latency over the baseline's, a p99 E2E more than 10 % worse counts against it."""
        means = [self.ratio(name).ratio for name in ("e2e_mean", "per_token_mean")]
        known = [each for each in means if each > 0]
        middle = math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan
        tail = self.ratio("e2e_p99").ratio
        return middle * (tail / MAX_TAIL if tail > MAX_TAIL else 1.0)

    def _side(self, name: str) -> int:
        """-1 if a figure is lower by enough to matter, 1 if it is higher, else 0."""
        found = self.ratio(name)
        if math.isnan(found.ratio) or _is_noise(found):
            return 0
        least = MAX_TAIL - 1 if name in _TAILS and found.ratio > 1 else MIN_CHANGE
        moved = abs(found.ratio - 1)
        if moved <= least or moved * self.base_s.get(name, math.inf) < _MIN_S.get(name.rpartition("_")[0], 0.0):
            return 0
        return -1 if found.ratio < 1 else 1

    def sentence(self, base: str, where: str = "") -> str:
        """Return what got better, what it cost, and whether it matters; `base`: the baseline's name."""
        against = f"against {base}{where}"
        found = self.judgement
        if found == "noise":
            return f"No difference beyond noise{where} between {self.label} and {base}: {self._first_change()}."
        if found == "too small":
            return f"{self.label} changes too little to matter {against}: {self._first_change()}."
        if found == "worse":
            return f"Nothing is better than {base}{where}: {self.label} {self.costs}."
        gains = [f"{_TITLES[each]} by {_percent(self.over[each].ratio)}" for each in self.better[:_NAMED]]
        said = f"lowers {_listed(gains)} {against}" if gains else ""
        if self.share_side > 0:
            kept = f"has {self._shares} of requests within the limits"
            said = f"{said} and {kept}" if said else f"{kept} {against}"
        if found == "gain":
            return f"{self.label} {said}, at no cost: worth it."
        end = "worth it if the tail may grow" if found == "gain, worse tail" else "a trade"
        return f"{self.label} {said}; it {self.costs}: {end}."

    def figures(self) -> str:
        """Return every figure's change with its 95 % interval: one sentence."""
        found = [f"{title} {change(self.over[name])}" for name, title in _TITLES.items() if _known(self.ratio(name))]
        if self.within is not None:
            points = f"{100 * self.within.change:+.1f} points"
            ends = f" [{100 * self.within.low:+.1f}, {100 * self.within.high:+.1f}]"
            sure = "" if math.isnan(self.within.low) else ends
            found.append(f"within the limits {self._shares} ({points}{sure})")
        text = ", ".join(found)
        return f"{text[:1].upper()}{text[1:]}." if text else ""

    @property
    def costs(self) -> str:
        """What got worse, as a verb phrase; empty if nothing did."""
        higher = [f"{_TITLES[each]} by {_percent(self.over[each].ratio)}" for each in self.worse[:_NAMED]]
        said = [f"raises {_listed(higher)}"] if higher else []
        if self.share_side < 0:
            said.append(f"has only {self._shares} of requests within the limits")
        return " and ".join(said)

    @property
    def _shares(self) -> str:
        found = self.within
        return "" if found is None else f"{100 * found.share:.1f} % instead of {100 * found.base:.1f} %"

    def _first_change(self) -> str:
        name = next((each for each in _TITLES if _known(self.ratio(each))), None)
        return "nothing is known" if name is None else f"{_TITLES[name]} {change(self.over[name])}"


def change(ratio: Ratio) -> str:
    """Return a ratio as a change with its interval, all with their signs: `-13 % [-18, -7]`."""
    if math.isnan(ratio.low) or ratio.low == ratio.high:
        return f"{_signed(ratio.ratio)} %"
    return f"{_signed(ratio.ratio)} % [{_signed(ratio.low)}, {_signed(ratio.high)}]"


def _signed(ratio: float) -> str:
    percent = round(100 * (ratio - 1))
    return f"{percent:+d}" if percent else "0"


def _percent(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.0f} %"


def _known(ratio: Ratio) -> bool:
    return not math.isnan(ratio.ratio)


def _is_noise(ratio: Ratio) -> bool:
    return not math.isnan(ratio.low) and ratio.low <= 1 <= ratio.high


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
