"""Draw the figures of docs/reference/policies.md, one for each policy, from the policy's own keys.

    python -m scripts.policy_plots            # writes docs/figures/policy_NAME.svg

Left: the order of requests by the inputs of the policy. Right: the order of admission of the same 160 requests in an
overloaded queue; on the line no request overtakes another.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

from lengthwise.lengths import LogT, LogTColumns
from lengthwise.policies import POLICIES, WRAPPERS, Job, JobColumns, PolicyQueue, QueueView, make_policy
from lengthwise.policies.lengthwise import FAST_ROUND, Lanes
from lengthwise.policies.residual import gittins_rank
from lengthwise.reports.figures import COLOURS, GREY, legend, log_tokens
from scripts.docs_figures import drawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

SIZE = (8.8, 3.2)
CAP = 8192
SPREAD = 0.6  # default sigma of the predictions
SLOTS = 4
NOW = 300.0
TICKS = (30, 100, 300, 1000, 3000)
LONG, SHORT = QueueView(40, SLOTS, SLOTS), QueueView(2, SLOTS, SLOTS)
OF_TWO = ("tie",)  # drawn for a short and for a long queue


def main() -> None:
    """Draw all figures."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lengthwise"})
    for name in POLICIES:
        draw(name, "slo:seconds=240" if name == "slo" else name, columns=3 if name in OF_TWO else 2)
    for name in WRAPPERS:
        draw(
            name,
            {"classes": "classes(sjf)", "fair": "fair(sjf):quantum=2000", "bounded": "bounded(sjf):overtakes=20"}[name],
        )


def draw(name: str, spec: str, columns: int = 2) -> None:
    """Draw one figure."""
    with drawn(f"policy_{name}", columns, size=SIZE, title=spec) as panels:
        left = LEFT.get(name, by_length_and_waiting)
        if name in OF_TWO:
            by_length_and_waiting(panels[0], spec, SHORT)
            by_length_and_waiting(panels[1], spec, LONG)
            panels[0].set_title("2 waiting, 4 running")
            panels[1].set_title("40 waiting, 4 running")
        else:
            left(panels[0], spec)
        order_of_service(panels[-1], name, spec)


def predictions(median: Array, sigma: float | Array = SPREAD) -> dict[str, Any]:
    """Return the columns of log-t predictions."""
    predicted = LogTColumns.of(np.log(median), sigma, CAP)
    expected, tail = predicted.mean_and_cvar()
    return {"expected": expected, "tail": tail, "mu": predicted.mu, "sigma": predicted.sigma, "cap": predicted.cap}


def draw_ranks(axes: Axes, x: Array, y: Array, keys: Array) -> None:
    """Draw the rank of keys as bands, from the first tenth to the last."""
    order = np.argsort(np.argsort(keys.ravel(), kind="stable")) / keys.size
    # Equal keys have an equal rank, the mean of theirs.
    _, same = np.unique(keys.ravel(), return_inverse=True)
    order = (np.bincount(same, order) / np.bincount(same))[same].reshape(keys.shape)
    bands = axes.contourf(x, y, order, levels=np.linspace(0, 1, 11), cmap="YlGnBu_r")
    bar = axes.figure.colorbar(bands, ax=axes, ticks=[0.05, 0.95])
    bar.ax.set_yticklabels(["first", "last"])
    axes.grid(visible=False)


def by_length_and_waiting(axes: Axes, spec: str, view: QueueView = LONG) -> None:
    """Draw the order by median length and time waited."""
    draw_order(axes, spec, np.geomspace(20, 5000, 40), np.linspace(0, 240, 40), predictions, view)
    axes.set_xlabel("predicted median, tokens")


def by_prompt(axes: Axes, spec: str) -> None:
    """Draw the order by prompt length and time waited."""

    def columns(prompts: Array) -> dict[str, Any]:
        return {"expected": 300.0, "prompt_tokens": prompts}

    draw_order(axes, spec, np.geomspace(20, 8000, 40), np.linspace(0, 120, 40), columns)
    axes.set_xlabel("prompt not cached, tokens")


def draw_order(
    axes: Axes, spec: str, x: Array, waited: Array, columns: Callable[[Array], dict[str, Any]], view: QueueView = LONG
) -> None:
    """Draw the order of requests with these columns at each x, by the time waited."""
    grid = np.meshgrid(x, waited)
    jobs = JobColumns.filled(arrival=NOW - grid[1].ravel(), **columns(grid[0].ravel()))
    draw_ranks(axes, x, waited, make_policy(spec).keys(jobs, view, NOW).reshape(grid[0].shape))
    log_tokens(axes, TICKS)
    axes.set_ylabel("waited, s")


def by_spread(axes: Axes, spec: str) -> None:
    """Draw the scores of several policies for predictions of the same median and growing spread."""
    sigma = np.linspace(0.05, 1.6, 80)
    jobs = JobColumns.filled(arrival=0.0, **predictions(np.full(80, 300.0), sigma))
    series = {
        "sjf, ltr: median": np.exp(jobs.mu),
        "sept: E": jobs.expected,
        "tie: E + 0.3 CVaR": jobs.expected + 0.3 * jobs.tail,
        "gittins: rank": gittins_rank(jobs),
    }
    for colour, (name, values) in zip(COLOURS, series.items(), strict=False):
        axes.plot(sigma, values, color=colour, label=name)
    axes.set(yscale="log", xlabel="sigma of a prediction with median 300", ylabel="score, tokens")
    legend(axes)


def by_lane(axes: Axes, spec: str) -> None:
    """Draw the waiting work ahead of a new job, by its length, and the fast lane."""
    rng = np.random.default_rng(0)
    past = [
        Job(str(n), float(n), prediction=LogT(float(mu), SPREAD, CAP))
        for n, mu in enumerate(rng.normal(5.5, 1.0, 2000))
    ]
    medians = np.geomspace(5, 5000, 200)
    lanes = Lanes(lambda: SLOTS)
    for job in past:
        lanes.enter(job)
    fast = []
    for median in medians:
        lanes.credit = 1e9
        number = lanes.enter(Job("one", 0.0, prediction=LogT(float(np.log(median)), SPREAD, CAP)))
        fast.append(number == FAST_ROUND)
    for colour, wait in zip(COLOURS, (100.0, 500.0, 1000.0), strict=False):
        axes.plot(medians, np.where(fast, 0.0, wait), color=colour, label=f"waiting work {wait:g}")
    axes.axvspan(medians[0], medians[fast].max(), color=GREY, alpha=0.25, label="fast lane")
    log_tokens(axes, TICKS)
    axes.set(ylim=(-20, 1200), xlabel="predicted median, tokens", ylabel="work ahead, tokens per slot")
    legend(axes)


def by_age(axes: Axes, spec: str) -> None:
    """Draw the key against tokens generated, by spread."""
    policy, ages = make_policy(spec), np.arange(0.0, 1200.0, 8.0)
    for colour, sigma in zip(COLOURS, (0.0, 0.3, 0.6, 1.2), strict=False):
        columns = (
            {"expected": np.full(len(ages), 300.0)} if sigma == 0 else predictions(np.full(len(ages), 300.0), sigma)
        )
        jobs = JobColumns.filled(arrival=0.0, generated=ages, **columns)
        ranks = policy.keys(jobs, LONG, NOW)
        axes.plot(ages, ranks, color=colour, label=f"sigma {sigma:g}" if sigma else "certain")
    if "srpt" in spec:
        mean = float(predictions(np.array([300.0]), 0.6)["expected"][0])
        axes.axvline(0.8 * mean, color=GREY, linestyle=":", label="c: let finish from here (0.6)")
    axes.set(ylim=(0, 2000), xlabel="generated, of a prediction with median 300", ylabel="key, tokens")
    legend(axes)


def by_hit_group(axes: Axes, spec: str) -> None:
    """Draw which hit-ratio group is served when, if all of them have waiting requests."""
    queue = PolicyQueue(make_policy(spec))
    for number in range(2500):
        group = number % 10
        queue.push(Job(str(number), number / 10, 100, cached_tokens=10 * group + 5), 0.0)
    served = [job.cached_tokens // 10 for _ in range(1150) if (job := queue.pop(0.0)) is not None]
    starts = [0, *[n for n in range(1, len(served)) if served[n] != served[n - 1]], len(served)]
    for start, end in pairwise(starts):
        axes.plot([start, end], [served[start]] * 2, color=COLOURS[0], linewidth=4, solid_capstyle="butt")
    axes.set(xlabel="order of service", ylabel="hit-ratio group")


def by_tenant(axes: Axes, spec: str) -> None:
    """Draw the admitted work of two tenants that always have waiting requests, with and without the wrapper."""
    for inside, style in ((spec, "-"), ("sjf", ":")):
        queue = PolicyQueue(make_policy(inside))
        rng = np.random.default_rng(1)
        for number in range(600):
            tenant, median = ("short answers", 150) if number % 2 else ("long answers", 600)
            prediction = LogT(math.log(median) + 0.4 * rng.standard_normal(), SPREAD, CAP)
            queue.push(Job(str(number), float(number), prediction=prediction, tenant=tenant), 0.0)
        done = {"short answers": [0.0], "long answers": [0.0]}
        for _ in range(300):
            job = queue.pop(0.0)
            for tenant, totals in done.items():
                more = job.expected if job is not None and job.tenant == tenant else 0.0
                totals.append(totals[-1] + more / 1000)
        for colour, (tenant, totals) in zip(COLOURS, done.items(), strict=False):
            axes.plot(totals, style, color=colour, label=f"{tenant}, {'fair' if style == '-' else 'sjf alone'}")
    axes.set(xlabel="requests admitted", ylabel="work admitted, 1,000 tokens")
    legend(axes)


def by_overtakers(axes: Axes, spec: str) -> None:
    """Draw the number of later requests that overtake each request."""
    for inside, colour in (("sjf", GREY), (spec, COLOURS[0])):
        order = [int(job.id) for job in admitted("bounded", inside)]
        overtakers = {number: sum(other > number for other in order[:place]) for place, number in enumerate(order)}
        axes.plot([overtakers[number] for number in range(len(order))], ".", color=colour, label=inside)
    axes.axhline(20, color=COLOURS[1], linewidth=0.8)
    axes.set(xlabel="order of arrival", ylabel="overtaken by")
    legend(axes)


def by_class(axes: Axes, spec: str) -> None:
    """Draw the eviction scores of running jobs of three classes, by their expected length."""
    expected = np.geomspace(30, 3000, 40)
    for colour, priority in zip(COLOURS, (0, 1, 2), strict=False):
        jobs = JobColumns.filled(arrival=0.0, expected=np.tile(expected, 3), priority=np.repeat([0, 1, 2], 40))
        scores = make_policy(spec).eviction_scores(jobs, NOW)[jobs.priority == priority]
        axes.plot(expected, scores, ".", color=colour, label=f"priority {priority}")
    log_tokens(axes, TICKS)
    axes.set(xlabel="expected, tokens", ylabel="eviction score, rank of 120")
    legend(axes)


def admitted(name: str, spec: str) -> list[Job]:
    """Return the same requests for every policy, in the order of admission."""
    rng = np.random.default_rng(0)
    queue = PolicyQueue(make_policy(spec), SLOTS)
    queue.tokens_per_s = 150.0
    medians = np.exp(rng.normal(math.log(300), 1.0, 160)).clip(20, 5000)
    jobs = [
        Job(
            str(number),
            2.0 * number,
            int(rng.lognormal(6, 1)),
            prediction=LogT(math.log(median), SPREAD, CAP),
            tenant=str(number % 3),
            priority=number % 3 if name == "classes" else 0,
        )
        for number, median in enumerate(medians)
    ]
    for job in jobs:
        job.cached_tokens = int(job.prompt_tokens * rng.random())
    served: list[Job] = []
    arriving = iter([*jobs, None])
    after = next(arriving)
    for number in range(10_000):
        now = 3.0 * number  # one is admitted every 3 s, one arrives every 2 s
        while after is not None and after.arrival <= now:
            queue.push(after, now)
            after = next(arriving)
        first = queue.pop(now)
        if first is None:
            break
        served.append(first)
    return served


def order_of_service(axes: Axes, name: str, spec: str) -> None:
    """Draw the order of arrival against the order of admission."""
    served = admitted(name, spec)
    arrivals = [int(job.id) for job in served]
    colour = np.log10([job.prompt_tokens - job.cached_tokens if name == "boost" else job.expected for job in served])
    axes.plot([0, 160], [0, 160], color=GREY, linewidth=0.8)
    dots = axes.scatter(
        arrivals,
        np.arange(len(arrivals)),
        c=colour,
        s=9,
        cmap=mpl.colormaps["plasma_r"].resampled(8),
        vmin=1.5,
        vmax=3.5,
    )
    bar = axes.figure.colorbar(dots, ax=axes, ticks=[2, 3])
    bar.ax.set_yticklabels(["100", "1,000"])
    bar.ax.set_title("tokens", fontsize=8)
    axes.set(xlabel="order of arrival", ylabel="order of admission")


LEFT: dict[str, Any] = {
    "lengthwise": by_lane,
    "sept": by_spread,
    "srpt": by_age,
    "gittins": by_age,
    "boost": by_prompt,
    "lpm": by_hit_group,
    "preble": by_hit_group,
    "fair": by_tenant,
    "bounded": by_overtakers,
    "classes": by_class,
}

if __name__ == "__main__":
    main()
