"""The verdict of a result: what every command says first, in the terminal and at the top of a page.

All wording is here. A report chooses what is judged and gives it to one of these functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from lengthwise.reports.tables import multiple, number, seconds, share

if TYPE_CHECKING:  # most need an extra
    from lengthwise.client.load import LoadReport
    from lengthwise.intervals import Ratio
    from lengthwise.reports.runs import ReportedRun
    from lengthwise.simulator.metrics import LatencyLimits
    from lengthwise.simulator.planning import CapacitySearch, SeededPlan
    from lengthwise.traffic.scores import PredictionScores

MIN_GAIN: Final = 0.03
"""Share of the baseline's mean E2E. A smaller gain is not worth a change."""
MAX_TAIL: Final = 1.10
"""A p99 that is more than 10 % worse is a price that the verdict names."""
ENOUGH: Final = 0.99
"""Share of requests within their limits at which an endpoint keeps up with a rate."""
MAX_OFF: Final = 0.1
"""Error of a replayed mean E2E up to which ratios are figures."""
MAX_OFF_DIRECTION: Final = 0.25
"""Error of a replayed mean E2E up to which ratios show a direction."""
_BOUND: Final = "With TRUE LENGTHS, which no server has: "

Judgement = Literal["noise", "worse", "too small", "gain", "gain, worse tail"]


@dataclass(frozen=True)
class Verdict:
    """The conclusion of a result: a headline, and the sentences that qualify it."""

    headline: str
    details: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Verdict:
        """Return a text as a verdict; its first sentence is the headline."""
        first, dot, rest = text.partition(". ")
        return cls(first + dot.strip(), (rest,) if rest else ())

    @property
    def lead(self) -> str:
        """The sentences after the headline."""
        return " ".join(self.details)

    def __str__(self) -> str:
        return " ".join((self.headline, *self.details))


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


def on_policies(runs: Sequence[ReportedRun]) -> Verdict:
    """Return the verdict on the best policy without true lengths; `runs` are those of one place and offered load.

    Without a baseline, or with nothing beside it, the verdict is the mean E2E alone.
    """
    offered, place = runs[0].offered, runs[0].place
    where = f" at {offered}" if offered else ""
    where += f" ({place})" if place else ""
    base = next((run for run in runs if run.is_baseline), None)
    if base is None:
        fastest = min(runs, key=lambda run: run.latency["e2e_s"]["mean"])
        reason = "" if len(runs) == 1 else "; fcfs is not among the policies, so nothing is compared with it"
        return Verdict(f"Mean E2E of {fastest.in_words} is {seconds(fastest.latency['e2e_s']['mean'])}{where}{reason}.")
    others = [run for run in runs if not run.is_baseline]
    able = [run for run in others if not run.true_lengths]
    judged = [run for run in able or others if not math.isnan(run.ratio("e2e_mean").ratio)]
    if not judged:
        mean = seconds(base.latency["e2e_s"]["mean"])
        return Verdict(f"Mean E2E of {base.in_words} is {mean}{where}; nothing is compared with it.")
    best = min(judged, key=lambda run: price(run.ratio("e2e_mean"), run.ratio("e2e_p99")))
    details = (_tail(best, base), _by_length(best, base))
    return Verdict(f"{'' if able else _BOUND}{_gain(best, base, where)}", tuple(filter(None, details)))


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
    return f"{price}p99 E2E is {tail:.2f} times that of {base.name}."


def _by_length(best: ReportedRun, base: ReportedRun) -> str:
    ours, theirs = best.profile, base.profile
    if ours is None or theirs is None or len(ours.e2e_s) != len(theirs.e2e_s) or len(ours.e2e_s) < 2:
        return ""
    short, long = (ours.e2e_s[place] / theirs.e2e_s[place] for place in (0, -1))
    tenth = f"The shortest tenth of answers takes {short:.2f} times as long as under {base.name}"
    return f"{tenth}, the longest {long:.2f} times."


def on_replay(runs: Sequence[ReportedRun], *, measured_s: float, replayed_s: float) -> Verdict:
    """Return the verdict on policies in a replay of recorded traffic, and whether the replay matches it."""
    gain, match = on_policies(runs), replay_match(measured_s, replayed_s)
    return Verdict(f"In a replay: {gain.headline}", (*gain.details, f"{match[0].upper()}{match[1:]}."))


def replay_match(measured_s: float, replayed_s: float) -> str:
    """Return whether a replay matches the measurement, by the mean E2E of both: a clause."""
    error = replayed_s / measured_s - 1 if measured_s > 0 else math.nan
    off = "–" if math.isnan(error) else f"{100 * error:+.0f} %"
    mismatch = f"the replayed mean E2E is {off} off"
    if abs(error) <= MAX_OFF:
        return f"{mismatch}: the ratios below can be read as they are"
    if abs(error) <= MAX_OFF_DIRECTION:
        return f"{mismatch}: read the ratios below as a direction, not as figures"
    return f"{mismatch}: the ratios below say little; give an engine of `lengthwise engine fit` with --engine"


@dataclass(frozen=True)
class MeasuredGain:
    """A policy that was measured on an engine beside fcfs: its figures over those of fcfs."""

    label: str
    mean: Ratio
    per_token: Ratio
    p99: Ratio
    blocks: int


def on_measured(arms: Sequence[MeasuredGain], kind: str) -> Verdict:
    """Return whether a policy is worth turning on; `arms` are those without true lengths, `kind` of episodes."""
    if not arms:
        return Verdict("Nothing to judge: only true lengths were measured.")
    best = min(arms, key=lambda each: price(each.mean, each.p99))
    advice = {"gain": "Turn it on", "gain, worse tail": "Turn it on only if the tail may grow"}
    return Verdict(
        f"{advice.get(judge(best.mean, best.p99), 'Not worth it here')}: {best.label} has {multiple(best.mean, 2)} "
        f"times the mean E2E of fcfs, {multiple(best.per_token, 2)} times its latency per token and "
        f"{multiple(best.p99, 2)} times its p99 E2E ({kind}, {best.blocks} blocks)."
    )


def on_change(changes: Sequence[tuple[str, Ratio]], first: str, second: str) -> Verdict:
    """Return what has changed most beyond noise from one file to another: names of runs, and ratios of mean E2E."""
    beyond = [(name, ratio) for name, ratio in changes if not (ratio.low < ratio.high and ratio.low <= 1 <= ratio.high)]
    if not beyond:
        return Verdict(f"No difference of mean E2E beyond noise between {first} and {second}.")
    name, most = max(beyond, key=lambda each: abs(math.log(each[1].ratio or 1.0)))
    if most.ratio == 1:
        return Verdict(f"{first} and {second} have the same latencies.")
    change = f"{100 * abs(most.ratio - 1):.1f} % {'lower' if most.ratio < 1 else 'HIGHER'}"
    return Verdict(f"Mean E2E of {name} is {change} in {second} than in {first}.")


def on_engines(search: CapacitySearch, plans: Sequence[SeededPlan], without_queue: float | None) -> Verdict:
    """Return the fewest engines beside those of fcfs; `search` is that of the first seed."""
    seeds = len(plans[0].seeds)

    def in_seeds(words: str) -> str:
        return f" {words} {seeds} seeds" if seeds > 1 else ""

    def lowest(plan: SeededPlan) -> float:
        found = plan.attained(plan.engines or search.most)
        return math.nan if found is None else found[0] if seeds == 1 else found[1]

    met = [plan for plan in plans if plan.engines is not None]
    if not met:
        best = max(plans, key=lowest)
        reached = f"{best.policy} reaches {share(lowest(best))}{in_seeds('at the lowest of')}"
        alone = () if without_queue is None else (f"Without any queue it would be {share(without_queue)}.",)
        return Verdict(f"{search.most} engines are not enough for {search.target}: {reached}.", alone)
    bound = _BOUND if any(plan.true_lengths for plan in plans) else ""
    best = min(met, key=lambda plan: (plan.engines or 0, not plan.is_baseline))
    base = next((plan for plan in plans if plan.is_baseline), None)
    serve = f"{_verb(best.engines, 'serve')} {search.target}{in_seeds('in all')}"
    need = f"{bound}{engine_count(best.engines)} under {best.policy} {serve}"
    if base is None or best is base:
        others = [plan.policy for plan in plans if plan is not best and plan.engines == best.engines]
        same = f"; {', '.join(others)} {_verb(len(others), 'need')} as many" if others else ""
        return Verdict(f"{need}{same}.")
    if base.engines is None:
        return Verdict(f"{need}; under fcfs {search.most} are not enough.")
    fewer = 100 * (1 - (best.engines or 0) / base.engines)
    return Verdict(f"{need}; fcfs needs {base.engines} ({fewer:.0f} % fewer engines).")


def _verb(count: int | None, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def engine_count(count: int | None) -> str:
    """Return a number of engines in words."""
    return "1 engine" if count == 1 else f"{count} engines"


def on_load(loads: Sequence[LoadReport], limits: LatencyLimits) -> Verdict:
    """Return failures first, then goodput; over several rates, the highest at which 99 % are within the limits."""
    dead = next((load for load in loads if load.stopped), None)
    if dead is not None:
        sent = f"{len(dead.samples):,} of {dead.requests:,} requests sent"
        return Verdict(f"Stopped: the endpoint is dead ({', '.join(dead.errors)}); {sent}.")
    failed = max(load.failed for load in loads)
    if len(loads) == 1:
        met = f"{share(loads[0].within(limits))} of requests are within {limits}"
        found = f"{met}: {loads[0].goodput(limits):.3g} per second."
    else:
        kept = [load for load in loads if load.within(limits) >= ENOUGH and math.isfinite(load.rate or math.inf)]
        best = max((load.rate or 0.0 for load in kept), default=None)
        found = (
            f"At no rate are 99 % of requests within {limits}."
            if best is None
            else f"Up to {best:.3g} requests/s, 99 % of requests are within {limits}."
        )
    return Verdict(f"{share(failed)} of requests FAILED.", (found,)) if failed else Verdict(found)


def on_evaluation(
    predictor: str, *, ours: PredictionScores, constant: PredictionScores, ceiling: PredictionScores
) -> Verdict:
    """Return how good a predictor is, beside a constant per LLM and the noise ceiling."""
    error = 1 - ours.mae_mean / constant.mae_mean
    better = f"{100 * abs(error):.0f} % {'smaller' if error >= 0 else 'LARGER'} than that of a constant per LLM"
    rank = (
        "It does not rank prompts (tau is not defined)."
        if math.isnan(ours.tau)
        else f"It ranks prompts with tau {ours.tau:.2f} (the noise of sampling allows {ceiling.tau:.2f})."
    )
    return Verdict(
        f"The error of {predictor} is {ours.mae_mean:,.0f} tokens, {better}.",
        (rank, f"Its 90 % interval holds {100 * ours.coverage_90:.0f} % of answers."),
    )


def on_traffic(scored: int, ours: PredictionScores, history: PredictionScores) -> Verdict:
    """Return how good predictions were in production, beside the history of each model."""
    factor, other = (math.exp(each.log_error) for each in (ours, history))
    return Verdict(
        f"Half of the {scored:,} predictions were off by less than a factor of {factor:.2f}; the history of each "
        f"model alone, {other:.2f}.",
        (
            f"They rank requests with tau {number(ours.tau, 2)}.",
            f"The 90 % interval held {share(ours.coverage_90)} of the lengths.",
        ),
    )


def on_probe(prompt_over_probe: Ratio, paper: float) -> Verdict:
    """Return how much hidden states improve the prediction, beside the paper's ratio of errors."""
    found = prompt_over_probe
    return Verdict(
        f"The error of the prompt alone is {found.ratio:.2f} times that of the probe with it (95 % interval "
        f"{found.low:.2f} to {found.high:.2f}); the paper has {paper:g}."
    )
