"""Draw the figures of README.md and docs/concepts.md.

    python scripts/docs_figures.py [NAME...]       # writes docs/figures/NAME.svg, all without a name

Measured figures come from the raw rows in experiments/results/h200-32; simulated and predicted ones from the samples in
the package, so that every clone draws the same.
"""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq

from lengthwise import Fleet, LogT, PredictionInput, compare, load_predictor
from lengthwise.policies.admission import KvDemand, peak_kv_tokens
from lengthwise.reports.figures import COLOURS, GREY, figure, legend, log_tokens
from lengthwise.workloads import load_castillo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

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
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lengthwise"})
    for name in sys.argv[1:] or FIGURES_BY_NAME:
        FIGURES_BY_NAME[name]()


@contextmanager
def drawn(name: str, columns: int = 1, *, size: tuple[float, float], title: str) -> Iterator[list[Axes]]:
    """Yield the panels of a figure, then write it as SVG; a hundredth of a point is precise, and halves the size."""
    with figure(1, columns, size=size, title=title) as (drawing, panels):
        yield panels
        text = io.StringIO()
        drawing.savefig(text, format="svg", metadata={"Date": None})
    path = FIGURES / f"{name}.svg"
    path.write_text(re.sub(r"(\d\.\d\d)\d+", r"\1", text.getvalue()), encoding="utf-8")
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


FIGURES_BY_NAME: dict[str, Callable[[], None]] = {
    "gain": draw_gain,
    "concept_lengths": draw_lengths,
    "concept_prediction": draw_prediction,
    "concept_queue": draw_queue,
    "concept_load": draw_load,
    "concept_remaining": draw_remaining,
    "concept_memory": draw_memory,
    "concept_hosts": draw_hosts,
}

if __name__ == "__main__":
    main()
