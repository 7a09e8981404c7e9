"""Draw the figures of README.md, docs/concepts.md and docs/reference/policies.md.

    python -m scripts.docs_figures [NAME...]       # writes docs/figures/NAME.svg, all without a name

Measured figures come from the raw rows in experiments/results/h200-32; simulated and predicted ones from the samples in
the package, so that every clone draws the same. Figures of policies call the policies.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.figures import COLOURS, GREY, figure, legend, log_tokens, save
from lengthwise import Fleet, LogT, PredictionInput, compare, load_predictor
from lengthwise.lengths import LogTColumns
from lengthwise.policies import POLICIES, WRAPPERS, Fcfs, Job, JobColumns, PolicyQueue, QueueView, make_policy
from lengthwise.policies.admission import KvDemand, peak_kv_tokens
from lengthwise.policies.lengthwise import FAST_ROUND, Lanes
from lengthwise.policies.ontime import latest_start
from lengthwise.policies.residual import gittins_rank
from lengthwise.policies.sessions import Sessions
from lengthwise.policies.wrappers import Background
from lengthwise.workloads import load_castillo

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Array = NDArray[np.float64]


ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
MEASURED = ROOT / "experiments" / "results" / "h200-32" / "requests.parquet"
OURS, BASELINE, TRUE = COLOURS[0], GREY, COLOURS[2]
LLM = "llama-3.1-8b"
FLEET = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=32)
LOADS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.3, 1.5)


def main() -> None:
    """Draw all figures."""
    os.environ.pop("LENGTHWISE_DATA", None)  # the samples, whatever data is at hand
    for name in sys.argv[1:] or FIGURES_BY_NAME:
        FIGURES_BY_NAME[name]()


@contextmanager
def drawn(name: str, columns: int = 1, *, size: tuple[float, float], title: str) -> Iterator[list[Axes]]:
    """Yield the panels of a figure, then write it as SVG."""
    path = FIGURES / f"{name}.svg"
    with figure(1, columns, size=size, title=title) as (drawing, panels):
        yield panels
        save(drawing, path)
    print(path.relative_to(ROOT))  # noqa: T201


def mean_by_length(policy: str, parts: int = 10) -> tuple[Array, Array]:
    """Return the edges of groups of equal size by answer length, and the measured mean E2E latency in each, in s."""
    table = pq.read_table(MEASURED)
    columns = {name: table[name].to_numpy() for name in ("policy", "due_s", "finished_s", "output_tokens")}
    edges = np.quantile(columns["output_tokens"], np.linspace(0, 1, parts + 1))
    group = np.clip(np.searchsorted(edges, columns["output_tokens"], side="right") - 1, 0, parts - 1)
    chosen = columns["policy"] == policy
    latency = columns["finished_s"] - columns["due_s"]
    return edges, np.array([latency[chosen & (group == number)].mean() for number in range(parts)])


def draw_gain() -> None:
    """Measured latency by the length of the answer, FCFS beside `lengthwise`."""
    title = "Short answers no longer wait for long ones"
    with drawn("gain", size=(8.4, 3.6), title=title) as (axes,):
        for offset, (policy, name, colour) in enumerate(
            (("fcfs", "first come, first served", BASELINE), ("lengthwise", "Lengthwise, predicted lengths", OURS))
        ):
            edges, means = mean_by_length(policy)
            places = np.arange(len(means)) + 0.4 * offset
            axes.bar(places, means, width=0.38, color=colour, label=name)
            for place, value in zip(places, means, strict=True):
                axes.text(place, value + 0.15, f"{value:.1f}", ha="center", fontsize=7.5, color="#3d454c")
        labels = [f"{low:.0f}–{high:.0f}" for low, high in pairwise(edges)]
        axes.set_xticks(np.arange(len(labels)) + 0.2, labels, fontsize=8)
        axes.set(xlabel="tokens of the answer, in tenths of the requests", ylabel="mean time to the full answer, s")
        axes.grid(axis="x", visible=False)
        legend(axes, loc="upper left")
        axes.set_title("vLLM 0.32 on an H200, 32 slots, bursts at twice the capacity", fontsize=9, fontweight="normal")


def draw_lengths() -> None:
    """Answer lengths of one LLM, and the share of all tokens that long answers take."""
    lengths = np.sort(prompts_and_lengths()[1].ravel())
    with drawn("concept_lengths", 2, size=(8.4, 3.0), title="Answers differ by two orders of magnitude") as panels:
        bins = np.geomspace(max(1.0, lengths[0]), lengths[-1], 40)
        panels[0].hist(lengths, bins=bins.tolist(), color=OURS)
        log_tokens(panels[0], (3, 10, 30, 100, 300, 1000))
        panels[0].set(xlabel="tokens of the answer", ylabel="answers")
        share = np.cumsum(lengths[::-1]) / lengths.sum()
        panels[1].plot(np.arange(1, len(lengths) + 1) / len(lengths) * 100, share * 100, color=OURS)
        panels[1].set(xlabel="longest answers, %", ylabel="their share of all tokens, %")


def prompts_and_lengths() -> tuple[list[str], Array]:
    """Return the sample's test prompts and their ten answer lengths, of prompts without a degenerate answer."""
    samples = load_castillo().where(split="test", llm=LLM)
    clean = np.asarray(samples.clean_mask().all(axis=1))
    texts = samples.table["prompt"].to_pylist()
    kept = [text for text, keep in zip(texts, clean, strict=True) if keep]
    return kept, samples.lengths_matrix()[clean].astype(float)


def draw_prediction() -> None:
    """Predicted intervals of prompts beside the answers that came."""
    texts, lengths = prompts_and_lengths()
    every = len(texts) // 60
    texts, lengths = texts[::every][:60], lengths[::every][:60]
    predictions = load_predictor("default").predict([PredictionInput(text, LLM) for text in texts])
    order = sorted(range(len(texts)), key=lambda number: predictions[number].quantile(0.5))
    with drawn("concept_prediction", size=(8.4, 3.4), title="A prediction is a distribution") as (axes,):
        for place, number in enumerate(order):
            predicted = predictions[number]
            low, high = predicted.quantile(0.05), predicted.quantile(0.95)
            axes.plot([place, place], [low, high], color="#cfe1ee", linewidth=4, solid_capstyle="butt")
            axes.plot(place, predicted.quantile(0.5), marker="_", color=OURS, markersize=7)
            axes.plot(np.full(lengths.shape[1], place), lengths[number], ".", color=COLOURS[1], markersize=2.5)
        axes.set(yscale="log", ylabel="tokens", xlabel="60 prompts, in the order of the predicted median")
        axes.plot([], [], color="#cfe1ee", linewidth=4, label="90 % interval")
        axes.plot([], [], marker="_", linestyle="", color=OURS, label="predicted median")
        axes.plot([], [], ".", color=COLOURS[1], label="ten answers")
        legend(axes, loc="lower right", ncols=3)


QUEUE = (9, 2, 7, 1, 2, 1, 3, 1)  # s of work of requests that wait for two slots at the same time


def served(order: list[int]) -> list[tuple[int, int, float, float]]:
    """Return request, slot, start and end on two slots in this order."""
    free, placed = [0.0, 0.0], []
    for request in order:
        slot = int(np.argmin(free))
        placed.append((request, slot, free[slot], free[slot] + QUEUE[request]))
        free[slot] += QUEUE[request]
    return placed


def draw_queue() -> None:
    """The same requests on two slots, in order of arrival and by length."""
    orders = {
        "in order of arrival": list(range(len(QUEUE))),
        "shortest first": sorted(range(len(QUEUE)), key=lambda r: QUEUE[r]),
    }
    with drawn("concept_queue", 2, size=(8.4, 2.5), title="The same work in another order") as panels:
        for axes, (name, order) in zip(panels, orders.items(), strict=True):
            placed = served(order)
            for request, slot, start, end in placed:
                axes.barh(slot, end - start, left=start, height=0.8, edgecolor="white", color=shade(QUEUE[request]))
                axes.text((start + end) / 2, slot, "ABCDEFGH"[request], ha="center", va="center", fontsize=8)
            mean = np.mean([end for *_, end in placed])
            axes.set_title(f"{name}: mean {mean:.1f} s, last {max(end for *_, end in placed):.0f} s", fontsize=9.5)
            axes.set_yticks([0, 1], ["slot 1", "slot 2"])
            axes.set(xlim=(0, 18), xlabel="s")
            axes.grid(visible=False)


def shade(work: float) -> str:
    """Return a darker blue for more work."""
    return str(mpl.colors.to_hex(mpl.colormaps["Blues"](0.25 + 0.6 * work / max(QUEUE))))


def by_load(policy: str, predictor: str) -> tuple[Array, Array]:
    """Return mean E2E and p99 E2E over those of FCFS at each load."""
    options: dict[str, Any] = {"workload": "castillo", "fleet": FLEET, "requests": 1000, "seed": 0}
    mean, tail = [], []
    for load in LOADS:
        base, other = compare(["fcfs", policy], predictor=predictor, load=load, **options).outcomes
        mean.append(other.summary.e2e_s.mean / base.summary.e2e_s.mean)
        tail.append(other.summary.e2e_s.p99 / base.summary.e2e_s.p99)
    return np.array(mean), np.array(tail)


def draw_load() -> None:
    """What order brings at each load, for the mean and the tail."""
    with drawn("concept_load", 2, size=(8.4, 3.0), title="Order matters where requests wait") as panels:
        for policy, predictor, name, colour in (
            ("sjf", "oracle", "sjf, TRUE LENGTHS", TRUE),
            ("sjf", "fast", "sjf, predicted", COLOURS[3]),
            ("lengthwise", "fast", "lengthwise, predicted", OURS),
        ):
            for axes, values in zip(panels, by_load(policy, predictor), strict=True):
                axes.plot(LOADS, values, marker="o", markersize=3.5, color=colour, label=name)
        for axes, title in zip(panels, ("mean E2E over FCFS", "p99 E2E over FCFS"), strict=True):
            axes.axhline(1, color=BASELINE, linewidth=1)
            axes.set(title=title, xlabel="load")
            axes.set_ylim(bottom=0)
        legend(panels[1], loc="upper left")


def draw_remaining() -> None:
    """What remains of an answer after some tokens: a number counts down, a distribution does not."""
    prediction = LogT(mu=np.log(300), sigma=0.6, cap=8192)
    generated = np.arange(0, 901, 25)
    left = [prediction.remaining(int(tokens)) for tokens in generated]
    with drawn("concept_remaining", size=(8.4, 3.0), title="While an answer grows, its prediction is corrected") as (
        axes,
    ):
        low, high = ([each.quantile(q) for each in left] for q in (0.1, 0.9))
        axes.fill_between(generated, low, high, color="#cfe1ee", label="80 % interval of the rest")
        axes.plot(generated, [each.mean() for each in left], color=OURS, label="expected rest")
        axes.plot(
            generated, np.maximum(0, 300 - generated), color=BASELINE, linestyle="--", label="a single number, 300"
        )
        axes.set(xlabel="tokens so far; before the first: median 300", ylabel="tokens to come")
        legend(axes, loc="upper left")


RUNNING = ((900, 200), (500, 700), (300, 100), (700, 500), (200, 400))  # KV tokens held, predicted tokens to come


def draw_memory() -> None:
    """KV memory of five running requests over their next steps, with and without a sixth."""
    capacity, last = 3700, 800
    with drawn("concept_memory", 2, size=(8.4, 3.0), title="Admission looks at the peak, not at the prompt") as panels:
        for axes, (held, remaining) in zip(panels, ((600, 50), (600, 600)), strict=True):
            requests = [*RUNNING, (held, remaining)]
            peak = peak_kv_tokens([KvDemand(*request) for request in requests])
            # Straight lines between the ends of requests: a point per step would make the file a hundred times larger.
            steps = np.unique([0, last, *(end for _, rest in requests for end in (rest, rest + 1) if end <= last)])
            layers = [np.where(steps <= rest, now + steps, 0) for now, rest in requests]
            colours = [*(["#cfe1ee"] * len(RUNNING)), OURS]
            axes.stackplot(steps, np.array(layers), colors=colours, edgecolor="white", linewidth=0.5)
            axes.axhline(capacity, color=COLOURS[1], linewidth=1.2)
            verdict = "admitted" if peak <= capacity else "waits"
            axes.set_title(f"{remaining} tokens predicted: peak {peak:,}, {verdict}", fontsize=9.5)
            axes.set(xlabel="steps from now", ylim=(0, 5000))
        panels[0].set_ylabel("KV tokens")
        panels[0].text(790, capacity + 60, f"KV memory: {capacity:,}", ha="right", color=COLOURS[1], fontsize=8.5)


def draw_hosts() -> None:
    """One policy object in three hosts."""
    with drawn("concept_hosts", size=(8.4, 2.7), title="One policy, three hosts") as (axes,):
        axes.set_axis_off()
        axes.set(xlim=(0, 10), ylim=(0, 4))
        box(axes, 0.2, 1.4, 2.2, 1.2, "predictor\n\nprompt, LLM → distribution", "#eef2f5")
        box(axes, 3.6, 1.4, 2.2, 1.2, "policy, router\n\npure functions", "#cfe1ee")
        for height, text in (
            (2.9, "simulator: virtual time"),
            (1.5, "gateway: any OpenAI engine"),
            (0.1, "vLLM: inside"),
        ):
            box(axes, 7.2, height, 2.6, 1.0, text, "#eef2f5")
            axes.annotate("", (7.15, height + 0.5), (5.85, 2.0), arrowprops={"arrowstyle": "->", "color": "#5b6770"})
        axes.annotate("", (3.55, 2.0), (2.45, 2.0), arrowprops={"arrowstyle": "->", "color": "#5b6770"})


def box(axes: Axes, left: float, bottom: float, width: float, height: float, text: str, colour: str) -> None:
    """Draw a labelled box."""
    axes.add_patch(
        mpl.patches.FancyBboxPatch((left, bottom), width, height, boxstyle="round,pad=0.04", fc=colour, ec=GREY)
    )
    axes.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=8.5)


CAP = 8192
SPREAD = 0.6  # default sigma of the predictions
SLOTS = 4
NOW = 300.0
TICKS = (30, 100, 300, 1000, 3000)
LONG, SHORT = QueueView(40, SLOTS, SLOTS), QueueView(2, SLOTS, SLOTS)
OF_TWO = ("tie",)  # drawn for a short and for a long queue
SPECS = {
    "slo": "slo:seconds=240",
    "ontime": "ontime:ttft=60",
    "classes": "classes(sjf)",
    "fair": "fair(sjf):quantum=2000",
    "bounded": "bounded(sjf):overtakes=20",
    "background": "background(fcfs):share=0.05",
    "sessions": "sessions(fcfs)",
}


def draw_policy(name: str) -> None:
    """The order by the inputs of a policy (left), and the admission of the same 160 requests in an overloaded queue."""
    spec = SPECS.get(name, name)
    with drawn(f"policy_{name}", 3 if name in OF_TWO else 2, size=(8.8, 3.2), title=spec) as panels:
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


def by_limit(axes: Axes, spec: str) -> None:
    """Draw how long a job may wait before it is late, by its length and its limit."""
    tokens, token_s, none = np.geomspace(20, 3000, 100), 0.025, math.inf
    for colour, (label, due, per_token, deadline) in zip(
        COLOURS,
        (
            ("first token within 10 s", 10.0, none, none),
            ("50 ms per token", none, 0.05, none),
            ("last token within 30 s", none, none, 30.0),
        ),
        strict=False,
    ):
        waits = [latest_start(0.0, due, per_token, deadline, float(work), token_s) for work in tokens]
        axes.plot(tokens, waits, color=colour, label=label)
    log_tokens(axes, TICKS)
    axes.set(ylim=(0, 40), xlabel="predicted median, tokens of 25 ms", ylabel="may wait, s")
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


def by_longest(axes: Axes, spec: str) -> None:
    """Draw which lengths are behind the others, for three shares, on the lengths of recent jobs."""
    medians = np.geomspace(20, 5000, 200)
    recent = np.random.default_rng(0).normal(math.log(300), 1.0, 2000)
    axes.hist(np.exp(recent), bins=list(np.geomspace(20, 5000, 40)), color=GREY, label="recent requests")
    for colour, share in zip(COLOURS, (0.01, 0.05, 0.2), strict=False):
        rounds = Background(Fcfs(), share=share).make_rounds()
        for number, mu in enumerate(recent):
            rounds.enter(Job(str(number), 0.0, prediction=LogT(float(mu), SPREAD, CAP)))
        numbers = [rounds.enter(Job("one", 0.0, prediction=LogT(math.log(each), SPREAD, CAP))) for each in medians]
        axes.axvline(
            medians[int(np.argmax(numbers))], color=colour, label=f"behind the others: the longest {share:.0%}"
        )
    log_tokens(axes, TICKS)
    axes.set(xlabel="predicted median, tokens", ylabel="requests")
    legend(axes)


def by_rest(axes: Axes, spec: str) -> None:
    """Draw the round of a first turn by its predicted length, for templates whose sessions have 1, 4 and 16 turns."""
    medians, rounds, kinds = np.geomspace(20, 5000, 200), Sessions(Fcfs()).make_rounds(), (1, 4, 16)
    predicted = LogT(math.log(100), SPREAD, CAP)
    for number in range(200):
        for turns in kinds:
            for _ in range(turns):
                turn = Job("turn", 0.0, prediction=predicted, session=f"{turns}, {number}", template=f"{turns}")
                turn.generated = 100
                rounds.enter(turn)
                rounds.finished(turn)
    start: int | None = None
    for colour, turns in zip(COLOURS, kinds, strict=False):
        firsts = [
            Job("first", 0.0, prediction=LogT(math.log(each), SPREAD, CAP), session="new", template=f"{turns}")
            for each in medians
        ]
        places = np.array([deepcopy(rounds).enter(first) for first in firsts])
        start = int(places[0]) if start is None else start
        axes.plot(medians, places - start, color=colour, label=f"sessions of {turns} x 100 tokens")
    log_tokens(axes, TICKS)
    axes.set(xlabel="predicted median of the first turn, tokens", ylabel="rounds behind the shortest")
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
            session=f"{number // 2}" if number % 3 else None,  # two turns, or one
        )
        for number, median in enumerate(medians)
    ]
    for job in jobs:
        job.cached_tokens = int(job.prompt_tokens * rng.random())
    for number in range(400 if name == "background" else 0):  # lengths that it compares with
        recent = LogT(float(rng.normal(math.log(300), 1.0)), SPREAD, CAP)
        queue.push(Job(f"before {number}", 0.0, prediction=recent), 0.0)
        queue.pop(0.0)
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
    "ontime": by_limit,
    "sept": by_spread,
    "srpt": by_age,
    "gittins": by_age,
    "boost": by_prompt,
    "lpm": by_hit_group,
    "preble": by_hit_group,
    "fair": by_tenant,
    "bounded": by_overtakers,
    "background": by_longest,
    "classes": by_class,
    "sessions": by_rest,
}

FIGURES_BY_NAME: dict[str, Callable[[], None]] = {
    "gain": draw_gain,
    "concept_lengths": draw_lengths,
    "concept_prediction": draw_prediction,
    "concept_queue": draw_queue,
    "concept_load": draw_load,
    "concept_remaining": draw_remaining,
    "concept_memory": draw_memory,
    "concept_hosts": draw_hosts,
    **{f"policy_{name}": partial(draw_policy, name) for name in (*POLICIES, *WRAPPERS)},
}

if __name__ == "__main__":
    main()
