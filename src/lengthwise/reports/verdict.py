"""The verdict of a result: what every command says first, in the terminal and at the top of a page.

A report chooses what is judged and gives it to one of these functions. What a policy brings over another is said by
`simulator.gains`, for the gateway too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lengthwise.reports.tables import number, seconds, share
from lengthwise.simulator.gains import SAME_SHARE, Gain, Judgement, change

if TYPE_CHECKING:  # most need an extra
    from lengthwise.client.load import LoadReport
    from lengthwise.intervals import Ratio
    from lengthwise.reports.runs import ReportedRun
    from lengthwise.simulator.metrics import LatencyLimits
    from lengthwise.simulator.planning import CapacitySearch, FleetCost, SeededPlan
    from lengthwise.traffic.scores import PredictionScores

ENOUGH: Final = 0.99
"""Share of requests within their limits at which an endpoint keeps up with a rate."""
MAX_OFF: Final = 0.1
"""Error of a replayed mean E2E up to which ratios are figures."""
MAX_OFF_DIRECTION: Final = 0.25
"""Error of a replayed mean E2E up to which ratios show a direction."""
_BOUND: Final = "With TRUE LENGTHS, which no server has: "


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
    gains = {id(run): run.gain_over(base) for run in judged}
    best = min(judged, key=lambda run: gains[id(run)].price)
    details = (gains[id(best)].figures(), _most_within(judged, best, base), _by_length(best, base))
    sentence = gains[id(best)].sentence(base.name, where)
    return Verdict(f"{'' if able else _BOUND}{sentence}", tuple(filter(None, details)))


def _most_within(runs: Sequence[ReportedRun], best: ReportedRun, base: ReportedRun) -> str:
    """Return which other policy has the most requests within the limits, and what it costs; nothing if it is `best`."""
    known = [(run.within.share, run) for run in runs if run.within is not None]
    if best.within is None or not known:
        return ""
    most, run = max(known, key=lambda each: each[0])
    if most <= best.within.share + SAME_SHARE:
        return ""
    gain = run.gain_over(base)
    others = ", ".join(
        f"{share(each)} under {name}"
        for each, name in ((best.within.share, best.name), (best.within.base, base.name))
        if name != best.name or each == best.within.share
    )
    times = f"{most / best.within.share:.1f} times as many" if best.within.share > 0 else "more"
    end = f"; it {gain.costs}" if gain.costs else ""
    return f"Most requests within {run.slo or 'the limits'}: {share(most)} under {run.name} ({others}), {times}{end}."


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


_ADVICE: Final[Mapping[Judgement, str]] = {
    "gain": "Turn it on",
    "gain, worse tail": "Turn it on only if the tail may grow",
    "trade": "Turn it on only for what it gains",
}


def on_measured(arms: Sequence[Gain], kind: str, blocks: int) -> Verdict:
    """Return whether a policy is worth turning on; `arms` are those without true lengths, `kind` of episodes."""
    if not arms:
        return Verdict("Nothing to judge: only true lengths were measured.")
    best = min(arms, key=lambda each: each.price)
    advice = _ADVICE.get(best.judgement, "Not worth it here")
    return Verdict(f"{advice}: {best.sentence('fcfs', f' ({kind}, {blocks} blocks)')}", (best.figures(),))


def on_change(changes: Sequence[tuple[str, Ratio]], first: str, second: str) -> Verdict:
    """Return what has changed most beyond noise from one file to another: names of runs' figures, and their ratios."""
    beyond = [(name, ratio) for name, ratio in changes if not (ratio.low < ratio.high and ratio.low <= 1 <= ratio.high)]
    beyond = [each for each in beyond if not math.isnan(each[1].ratio)]
    if not beyond:
        return Verdict(f"No difference beyond noise between {first} and {second}.")
    name, most = max(beyond, key=lambda each: abs(math.log(each[1].ratio or 1.0)))
    if most.ratio == 1:
        return Verdict(f"{first} and {second} have the same latencies.")
    higher = "lower" if most.ratio < 1 else "HIGHER"
    size = f"{100 * abs(most.ratio - 1):.1f} % {higher}"
    sure = "" if math.isnan(most.low) or most.low == most.high else f" (change {change(most)})"
    return Verdict(f"{name[:1].upper()}{name[1:]} is {size} in {second} than in {first}{sure}.")


def on_engines(search: CapacitySearch, plans: Sequence[SeededPlan], without_queue: float | None) -> Verdict:
    """Return the fewest engines beside those of fcfs; `search` is that of the first seed."""
    seeds = len(plans[0].seeds)

    def in_seeds(words: str) -> str:
        return f"{words} {seeds} seeds" if seeds > 1 else ""

    def lowest(plan: SeededPlan) -> float:
        found = plan.attained(plan.engines or search.most)
        return math.nan if found is None else found[0] if seeds == 1 else found[1]

    met = [plan for plan in plans if plan.engines is not None]
    if not met:
        best = max(plans, key=lowest)
        reached = f"{best.policy} reaches {share(lowest(best))}{in_seeds(' at the lowest of')}"
        alone = () if without_queue is None else (f"Without any queue it would be {share(without_queue)}.",)
        return Verdict(f"{search.most} engines are not enough for {search.target}: {reached}.", alone)
    bound = _BOUND if any(plan.true_lengths for plan in plans) else ""
    best = min(met, key=lambda plan: (plan.engines or 0, not plan.is_baseline))
    base = next((plan for plan in plans if plan.is_baseline), None)
    wanted = f"{in_seeds(', the lowest of')} (target {100 * search.attainment:g} %)"
    serve = f"{_verb(best.engines, 'serve')} {share(lowest(best))} of requests within {search.slo}{wanted}"
    need = f"{bound}{engine_count(best.engines)} under {best.policy} {serve}"
    if base is None or best is base:
        others = [plan.policy for plan in plans if plan is not best and plan.engines == best.engines]
        same = f"; {', '.join(others)} {_verb(len(others), 'need')} as many" if others else ""
        return Verdict(f"{need}{same}.")
    if base.engines is None:
        return Verdict(f"{need}; under fcfs {search.most} are not enough.")
    fewer = 100 * (1 - (best.engines or 0) / base.engines)
    return Verdict(f"{need}; fcfs needs {base.engines} ({fewer:.0f} % fewer engines).")


def on_costs(options: Sequence[FleetCost], target: str) -> Verdict:
    """Return the cheapest fleet and policy, and the cheapest of each other engine; `options` attain the target."""
    if not options:
        return Verdict(f"No fleet of these engines serves {target}.")
    best = min(options, key=lambda each: each.per_hour)
    others = sorted(
        (
            min((each for each in options if each.engine == name), key=lambda each: each.per_hour)
            for name in {each.engine for each in options} - {best.engine}
        ),
        key=lambda each: each.per_hour,
    )
    bound = _BOUND if best.plan.true_lengths else ""
    beside = f"; {', '.join(map(str, others))}" if others else ""
    return Verdict(f"{bound}Cheapest for {target}: {best}{beside}.")


def recommended(search: CapacitySearch, plans: Sequence[SeededPlan]) -> SeededPlan:
    """Return the policy to use on a fixed fleet, one without true lengths if there is any.

    Of those that attain the target, else of those with about the largest share, the one with the least latency; fcfs if
    it is among them and the gain is not worth a change.
    """
    engines = search.most
    able = [plan for plan in plans if not plan.true_lengths] or list(plans)
    largest = max(_attained(plan, engines) for plan in able)
    near = [plan for plan in able if plan.engines is not None]
    near = near or [plan for plan in able if _attained(plan, engines) >= largest - SAME_SHARE]
    base = next((plan for plan in plans if plan.is_baseline), None)
    if base is None:
        return min(near, key=lambda plan: plan.latency(engines, "e2e_s", "mean"))
    gains = {id(plan): plan.gain_over(base, engines, search.slo) for plan in near}
    best = min(near, key=lambda plan: gains[id(plan)].price)
    return base if base in near and gains[id(best)].judgement in ("noise", "worse", "too small") else best


def on_fleet(search: CapacitySearch, plans: Sequence[SeededPlan]) -> Verdict:
    """Return which policy to use on a fixed fleet, and what it costs beside fcfs."""
    engines, best = search.most, recommended(search, plans)
    base = next((plan for plan in plans if plan.is_baseline and plan is not best), None)
    bound = _BOUND if best.true_lengths else ""
    met = f"{share(_attained(best, engines))} of requests are within {search.slo} on {engine_count(engines)}"
    beside = "" if base is None else f", {share(_attained(base, engines))} under {base.policy}"
    details = []
    if base is not None:
        gain = best.gain_over(base, engines, search.slo)
        details.append(f"The price: it {gain.costs}." if gain.costs else "No latency is worse beyond noise.")
        details.append(gain.figures())
    if best.engines is None:
        wanted = f"{100 * search.attainment:g} %"
        details.append(f"No policy attains {wanted}: --engines {engines}..{2 * engines} looks for the engines that do.")
    verb = "Keep" if best.is_baseline else "Use"
    return Verdict(f"{bound}{verb} {best.policy}: {met}{beside}.", tuple(details))


def _attained(plan: SeededPlan, engines: int) -> float:
    found = plan.attained(engines)
    return math.nan if found is None else found[0]


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
