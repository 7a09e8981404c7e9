"""TRAIL's scheduling (arXiv 2410.01035) on a simulated engine: does limited preemption pay, and at which c?

Mean latency and TTFT against FCFS over c at the poster's rate, with predictions from the prompt alone, refined by age, by a
stand-in for the probe (`predictions.py`) and in truth; without a prefix cache, as in the paper, where all that was
computed of a preempted request is computed again, and with one, as in vLLM today, where most of it is found again.
Then where preemption pays: few slots and many, below capacity and above. The formula behind TRAIL is checked by
`lengthwise theory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.trail import paper
from experiments.trail.predictions import Probe, Probed, mean_error, point, probe_of_error
from lengthwise.errors import InputError
from lengthwise.policies.srpt import Srpt
from lengthwise.predictors.probe import DEFAULT, load_probe
from lengthwise.simulator import Fleet, measure_capacity, predict_workload, simulate
from lengthwise.simulator.paired import Ratio, over_seeds
from lengthwise.training.probe.card import error_ratio
from lengthwise.workloads import castillo_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lengthwise.policies import Policy
    from lengthwise.simulator import Outcome, RequestPredictions
    from lengthwise.workloads import LengthSamples, Workload

    Report = Callable[[str, float], None]

__all__ = ["AGE", "KINDS", "PROMPT", "Effort", "Run", "Setting", "TrailStudy", "study"]

LLM: Final = "llama-3.1-8b"
ENGINE: Final = "llama-3-8b@a100"
SLOTS: Final = 48
"""So that the poster's rate is a little more than the engine can do: with a queue that never grows nobody gains."""
CORPUS: Final = "Alpaca"
PROMPT, AGE, TRUTH = "prompt only", "refined by age", "truth"
AS_SHIPPED, AS_IN_PAPER = "probe stand-in, error as the shipped probe's", "probe stand-in, error as in the paper"
PROBES: Final = (AS_SHIPPED, AS_IN_PAPER)
KINDS: Final = (PROMPT, AGE, *PROBES, TRUTH)


@dataclass(frozen=True)
class Effort:
    """How much is simulated."""

    seeds: int = 5
    requests: int = 2000
    limits: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    slots: tuple[int, ...] = (1, 4, 16, SLOTS)
    loads: tuple[float, ...] = (0.7, 0.9, 1.1)

    def __post_init__(self) -> None:
        if self.seeds < 2:
            raise InputError(f"{self.seeds} seeds", field="seeds", hint="give at least 2: intervals are over seeds")

    @classmethod
    def quick(cls, seeds: int = 2) -> Effort:
        """Enough to see the shape."""
        return cls(seeds, requests=400, limits=(0.0, 0.8, 1.0), slots=(4, SLOTS), loads=(0.9,))


@dataclass(frozen=True)
class Setting:
    """An engine and how much is asked of it; `capacity_per_s` under backlog, averaged over the seeds."""

    slots: int
    caching: bool
    rate: float
    capacity_per_s: float

    @property
    def load(self) -> float:
        """What is offered over what can be done."""
        return self.rate / self.capacity_per_s


@dataclass(frozen=True)
class Run:
    """`srpt` with one c and one kind of prediction in one setting, over all seeds."""

    setting: Setting
    predictions: str
    c: float
    e2e_s: float
    ttft_s: float
    e2e: Ratio
    """FCFS's mean over this one's: above 1 is a gain. With its 95 % interval over seeds, as the next three."""
    ttft: Ratio
    e2e_p99: Ratio
    over_none: Ratio
    """Mean E2E of c = 0 over this one's: above 1, preemption pays."""
    preemptions: float
    """Per request."""
    most: int
    """Preemptions of one request."""
    recomputed: float
    """Tokens computed again, over all tokens of prompts and answers."""


@dataclass(frozen=True)
class TrailStudy:
    """Everything measured. `over_c` is at the poster's rate; `where` goes by predictions refined by age only."""

    origin: str
    corpus: str
    predictor: str
    tau: float
    errors: dict[str, float]
    """Mean absolute error of the remaining length over all tokens, of each kind of prediction (first seed)."""
    effort: Effort
    over_c: tuple[Run, ...]
    where: tuple[Run, ...]


def study(
    samples: LengthSamples,
    *,
    predictor: str = "default",
    effort: Effort | None = None,
    on_progress: Report | None = None,
) -> TrailStudy:
    """Run everything on one LLM's answers to Alpaca, or to all test prompts where Alpaca is not at hand."""
    effort = Effort() if effort is None else effort
    report = on_progress or (lambda _what, _done: None)
    known = CORPUS in samples.corpora
    rows = samples.where(corpus=[CORPUS]) if known else samples.where(split="test")
    report("predictions", 0.0)
    ratios = {AS_SHIPPED: error_ratio(load_probe(DEFAULT)), AS_IN_PAPER: paper.ERROR_RATIO}
    traffic = [_Traffic.of(rows, predictor, effort.requests, seed, ratios) for seed in range(effort.seeds)]
    first = traffic[0]
    errors = {
        PROMPT: first.prompt_error,
        AGE: mean_error(first.workload, first.predictions, paper.MOST_TOKENS),
        **{name: first.prompt_error / ratio for name, ratio in ratios.items()},
        TRUTH: 0.0,
    }
    over_c: list[Run] = []
    for i, caching in enumerate((False, True)):
        setting = _setting(traffic, SLOTS, caching, rate=paper.RATE)
        for j, kind in enumerate(KINDS):
            done = 0.05 + 0.35 * (i + j / len(KINDS))
            report(f"rate {paper.RATE:g}, {kind}", done)
            over_c += _runs(setting, traffic, kind, effort.limits)
    where: list[Run] = []
    places = [(slots, load, caching) for slots in effort.slots for load in effort.loads for caching in (False, True)]
    for i, (slots, load, caching) in enumerate(places):
        report(f"{slots} slots, load {load:g}", 0.75 + 0.25 * i / len(places))
        where += _runs(_setting(traffic, slots, caching, load=load), traffic, AGE, (0.0, paper.C))
    return TrailStudy(
        origin=samples.origin,
        corpus=CORPUS if known else "all test prompts",
        predictor=predictor,
        tau=float(np.mean([each.predictions.tau for each in traffic])),
        errors=errors,
        effort=effort,
        over_c=tuple(over_c),
        where=tuple(where),
    )


@dataclass(frozen=True, eq=False)
class _Traffic:
    """One seed's requests, at one per second, and what is predicted of them."""

    workload: Workload
    predictions: RequestPredictions
    prompt_error: float
    probes: dict[str, Probe]

    @classmethod
    def of(cls, rows: LengthSamples, predictor: str, requests: int, seed: int, ratios: dict[str, float]) -> _Traffic:
        most = paper.MOST_TOKENS
        workload = castillo_workload(rows, LLM, requests=requests, rate=1.0, seed=seed, max_tokens=most)
        predictions = predict_workload(workload, predictor, seed=seed)
        error = mean_error(workload, point(predictions), most)
        probes = {name: probe_of_error(workload, error / ratio, cap=most, seed=seed) for name, ratio in ratios.items()}
        return cls(workload, predictions, error, probes)

    def serve(self, setting: Setting, policy: Policy | str, predictions: RequestPredictions | str) -> Outcome:
        sped_up = self.workload.replace(arrival_s=self.workload.arrival_s / setting.rate)
        return simulate(sped_up, _fleet(setting.slots, setting.caching), policy, predictor=predictions)

    def srpt(self, setting: Setting, kind: str, c: float) -> Outcome:
        """`srpt` with a kind of prediction."""
        if kind in PROBES:
            probe = self.probes[kind]
            moved = Probe(probe.arrival / setting.rate, probe.length, probe.log_error)
            return self.serve(setting, Probed(c=c, probe=moved), self.predictions)
        about: dict[str, RequestPredictions | str] = {
            PROMPT: point(self.predictions),
            AGE: self.predictions,
            TRUTH: "oracle",
        }
        return self.serve(setting, Srpt(c=c), about[kind])


def _fleet(slots: int, caching: bool) -> Fleet:
    return Fleet.parse(f"1*{ENGINE}").limited_to(max_num_seqs=slots, prefix_caching=caching)


def _setting(
    traffic: Sequence[_Traffic], slots: int, caching: bool, *, rate: float | None = None, load: float = 1.0
) -> Setting:
    fleet = _fleet(slots, caching)
    capacity = float(np.mean([measure_capacity(each.workload, fleet).requests_per_s for each in traffic]))
    return Setting(slots, caching, load * capacity if rate is None else rate, capacity)


def _runs(setting: Setting, traffic: Sequence[_Traffic], kind: str, limits: Sequence[float]) -> list[Run]:
    base = [each.serve(setting, "fcfs", each.predictions) for each in traffic]
    found: list[Run] = []
    none: list[Outcome] = []
    for c in limits:
        ours = [each.srpt(setting, kind, c) for each in traffic]
        none = none or ours
        tokens = sum(int((one.input_tokens + one.output_tokens).sum()) for one in ours)
        found.append(
            Run(
                setting=setting,
                predictions=kind,
                c=c,
                e2e_s=float(np.mean([one.summary.e2e_s.mean for one in ours])),
                ttft_s=float(np.mean([one.summary.ttft_s.mean for one in ours])),
                e2e=over_seeds(*([one.summary.e2e_s.mean for one in some] for some in (base, ours))),
                ttft=over_seeds(*([one.summary.ttft_s.mean for one in some] for some in (base, ours))),
                e2e_p99=over_seeds(*([one.summary.e2e_s.p99 for one in some] for some in (base, ours))),
                over_none=over_seeds(*([one.summary.e2e_s.mean for one in some] for some in (none, ours))),
                preemptions=float(np.mean([one.preemptions.mean() for one in ours])),
                most=max(int(one.preemptions.max()) for one in ours),
                recomputed=sum(int(one.recomputed_tokens.sum()) for one in ours) / tokens,
            )
        )
    return found
