"""Episodes of `lengthwise bench`: which policies take turns, on which traffic, in which order.

A block runs every arm once on the same arrivals, prompts and lengths; the next block draws other traffic and runs the
arms in reverse order (A B, B A, A B, ...), so that a machine that slowly changes its speed favours none. The first arm
is fcfs, and every ratio is taken to the fcfs of the same block.

    burst       arrivals at 2x capacity until 12 x slots have arrived; then the engine drains
    steady:X    arrivals at X times capacity
    trace       the busiest stretch of the Azure conversation trace, its hour scaled to 0.7 times capacity
    backlog     all requests at once: measures throughput
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.probe import DEFAULT as DEFAULT_PROBE
from lengthwise.predictors.probe import load_probe
from lengthwise.predictors.service import NO_PREDICTOR, known_predictor
from lengthwise.workloads import Workload, load_castillo, load_trace
from lengthwise.workloads.arrivals import generator, in_rounds, one_of_each_row, poisson
from lengthwise.workloads.datasets import PACKAGED

Floats = NDArray[np.float64]

FCFS: Final = "fcfs"
ORACLE: Final = "oracle"
"""The predictor that sends each request's true length."""
INVERTED: Final = "inverted"
"""The predictor that sends true lengths mirrored about their median: the longest claim to be the shortest."""
OF_TRUE_LENGTHS: Final = (ORACLE, INVERTED)
"""Predictors that no server can have."""
DEFAULT_LLM: Final = "meta-llama/Llama-3.1-8B-Instruct"
_HELD_OUT: Final = "Alpaca"  # its licence forbids commercial use
_DATA: Final = "CASTILLO, official test prompts"
_BURST_LOAD: Final = 2.0
_TRACE: Final = "azure2023_conv"
_PACKAGED_TRACE: Final = "azure_sample"
_TRACE_LOAD: Final = 0.7
_WITH_PROBE: Final = "+probe"
OWN_SAMPLING: Final = {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.3}
"""Sampling of the LLM's own answers: that of the answers which the packaged probe was trained on."""


@dataclass(frozen=True, order=True)
class Arm:
    """A policy and the predictor that it uses; `copy` distinguishes two arms that are the same.

    `PREDICTOR+probe` and `PREDICTOR+probe:FILE.lw` refine the predictions from the prompts by the LLM's hidden states.
    """

    policy: str
    predictor: str = NO_PREDICTOR
    copy: int = 0

    @property
    def prompt_predictor(self) -> str:
        """The predictor without its probe."""
        return self.predictor.partition(_WITH_PROBE)[0]

    @property
    def probe(self) -> str | None:
        """The probe, by name or file; None without one."""
        _, found, file = self.predictor.partition(_WITH_PROBE)
        return (file.removeprefix(":") or DEFAULT_PROBE) if found else None

    @property
    def label(self) -> str:
        """Its name in tables and files."""
        name = ", ".join(filter(None, (self.policy, self.predictor_label)))
        return f"{name} (again)" if self.copy else name

    @property
    def predictor_label(self) -> str:
        """Its predictor's name in tables, empty without one."""
        if self.predictor == NO_PREDICTOR:
            return ""
        made = {ORACLE: "true lengths", INVERTED: "inverted lengths"}
        name = made.get(self.predictor) or Path(self.prompt_predictor).stem
        if self.probe is not None:
            name += " + probe" if self.probe == DEFAULT_PROBE else f" + {Path(self.probe).stem}"
        return name


def arms_of(policies: Sequence[str], predictors: Sequence[str], *, noise: bool) -> tuple[Arm, ...]:
    """Return fcfs, fcfs again if the noise is to be measured, and every other policy on every predictor."""
    arms = [Arm(FCFS), *([Arm(FCFS, copy=1)] if noise else [])]
    for policy in policies:
        if policy == FCFS:
            continue
        uses = make_policy(policy).uses_predictions
        for predictor in predictors if uses else [NO_PREDICTOR]:
            arm = Arm(policy, predictor)
            if predictor not in OF_TRUE_LENGTHS:
                known_predictor(arm.prompt_predictor)
            if arm.probe is not None:
                load_probe(arm.probe)
            arms.append(arm)
    if len(arms) == 1:
        raise InputError("nothing to compare fcfs with", source="--policy", hint="name another policy")
    return tuple(dict.fromkeys(arms))


@dataclass(frozen=True)
class Kind:
    """A kind of episode: its name and, where requests arrive at a rate, that rate over capacity."""

    name: str
    load: float | None

    @classmethod
    def of(cls, text: str) -> Kind:
        """Parse `burst`, `steady:X`, `trace` or `backlog`."""
        name, _, number = text.partition(":")
        fixed = {"burst": _BURST_LOAD, "trace": _TRACE_LOAD, "backlog": None}
        try:
            load = float(number) if name == "steady" else fixed[text]
        except (KeyError, ValueError) as error:
            raise InputError(
                f"no episode '{text}'", source="--episode", hint="burst, steady:0.7, trace or backlog"
            ) from error
        if load is not None and not 0 < load <= 10:
            raise InputError(f"a load of {load:g}", source="--episode", hint="give a share of capacity: steady:0.7")
        return cls(text, load)


@dataclass(frozen=True)
class Turn:
    """One episode to run: an arm's turn in a block."""

    kind: Kind
    block: int
    place: int
    arm: Arm


def turns(kinds: Sequence[Kind], arms: Sequence[Arm], blocks: int) -> Iterator[list[Turn]]:
    """Yield the turns of each block of each kind, in the order they are run."""
    for block in range(blocks):
        order = arms if block % 2 == 0 else tuple(reversed(arms))
        for kind in kinds:
            yield [Turn(kind, block, place, arm) for place, arm in enumerate(order)]


@dataclass(frozen=True)
class TrafficPlan:
    """Where prompts and lengths come from.

    With `own_answers` the LLM ends its answers itself, at most at `cap`: each is sampled (`OWN_SAMPLING`) with a seed
    of its own, the same in every arm, and the predictor is asked about the LLM that is served. Otherwise lengths are
    forced by max_tokens and ignore_eos, so that every arm generates the same tokens. Without a workload:
    CASTILLO's official test prompts (without Alpaca) with one of the lengths that `llm` gave each, times `scale`, at
    most `cap`; the predictor is asked about that LLM. With a workload (a trace with prompts): its prompts and lengths.
    """

    llm: str | None = DEFAULT_LLM
    scale: float = 1.0
    cap: int = 2048
    longest_prompt: int = 1024
    workload: str | None = None
    seed: int = 0
    own_answers: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 100:
            raise InputError(f"a scale of {self.scale:g}", source="--scale", hint="give a number above 0")
        if self.cap < 1:
            raise InputError(f"a cap of {self.cap}", source="--cap", hint="give at least 1 token")


@dataclass(frozen=True, eq=False)
class Prompts:
    """What requests are drawn from: prompts, and the lengths that each may have (NaN where there are fewer)."""

    texts: Sequence[str]
    lengths: Floats
    tokens: NDArray[np.int64]
    origin: str
    left_out: dict[str, int]


def load_prompts(plan: TrafficPlan) -> Prompts:
    """Load the prompts of a plan."""
    return _from_castillo(plan) if plan.workload is None else _from_workload(plan, plan.workload)


def _from_castillo(plan: TrafficPlan) -> Prompts:
    samples = load_castillo(split="test")
    samples = samples.where(corpus=[name for name in samples.corpora if name != _HELD_OUT]).where(llm=plan.llm or "")
    texts = samples.table["prompt"].to_pylist()
    tokens = samples.table["input_tokens"].to_numpy()
    fits = (tokens <= plan.longest_prompt) & np.array([text is not None for text in texts], bool)
    clean = samples.clean_mask()
    rows = np.flatnonzero(fits & clean.any(axis=1))
    if not len(rows):
        raise InputError(
            f"no prompt of at most {plan.longest_prompt:,} tokens for '{plan.llm}'",
            source=samples.origin,
            hint=f"name an LLM that CASTILLO has, such as {DEFAULT_LLM}",
        )
    left_out = {
        f"prompts over {plan.longest_prompt:,} tokens": int((~fits).sum()),
        "prompts of which every sample is degenerate": int((fits & ~clean.any(axis=1)).sum()),
    }
    lengths = np.where(clean, samples.lengths_matrix(), np.nan)[rows]
    return Prompts(
        [texts[row] for row in rows], lengths, tokens[rows], _DATA if samples.origin != PACKAGED else PACKAGED, left_out
    )


def _from_workload(plan: TrafficPlan, source: str) -> Prompts:
    workload = load_trace(source)
    texts = workload.table["prompt"].to_pylist()
    fits = (workload.input_tokens <= plan.longest_prompt) & np.array([text is not None for text in texts], bool)
    rows = np.flatnonzero(fits)
    if not len(rows):
        raise InputError("has no prompt that fits", source=source, hint="give a workload with a `prompt` column")
    lengths = workload.output_tokens[rows].astype(np.float64)[:, None]
    left_out = {f"requests without a prompt of at most {plan.longest_prompt:,} tokens": int((~fits).sum())}
    return Prompts([texts[row] for row in rows], lengths, workload.input_tokens[rows], Path(source).name, left_out)


@dataclass(frozen=True, eq=False)
class Draw:
    """The requests of one block, the same for every arm."""

    picks: NDArray[np.intp]
    """Indices of the prompts."""
    workload: Workload
    """With `own_answers`, its output tokens are the cap."""
    seeds: NDArray[np.int64]
    """Of each request's answer, if the LLM samples it."""


def declared_lengths(arm: Arm, lengths: NDArray[np.int64], cap: int) -> NDArray[np.int64] | None:
    """Return what the requests of an arm declare as their lengths; None where they declare nothing."""
    if arm.predictor not in OF_TRUE_LENGTHS:
        return None
    logs = np.log(lengths)
    told = lengths if arm.predictor == ORACLE else np.exp(2.0 * np.median(logs) - logs)
    return np.clip(np.rint(told), 1, cap).astype(np.int64)


def draw(prompts: Prompts, plan: TrafficPlan, kind: Kind, block: int, *, n: int, capacity: float) -> Draw:
    """Draw the requests of a block; `capacity` in requests/s."""
    purpose = f"{kind.name} {block}"
    picks = in_rounds(len(prompts.texts), n, generator(plan.seed, f"prompts {purpose}")).astype(np.intp)
    lengths = prompts.lengths[picks]
    drawn = one_of_each_row(lengths, ~np.isnan(lengths), generator(plan.seed, f"lengths {purpose}"))
    if plan.own_answers:
        drawn = np.full(n, float(plan.cap))
    columns: dict[str, Any] = {
        "arrival_s": _arrivals(kind, n, capacity, generator(plan.seed, f"arrivals {purpose}")),
        "input_tokens": np.maximum(1, prompts.tokens[picks]),
        "output_tokens": np.clip(np.rint(drawn * plan.scale), 1, plan.cap).astype(np.int64),
        "max_tokens": np.full(n, plan.cap),
        "prompt": pa.array([prompts.texts[pick] for pick in picks.tolist()], pa.large_string()),
    }
    seeds = generator(plan.seed, f"answers {purpose}").integers(0, 2**31, n)
    return Draw(picks, Workload.from_table(columns, name=purpose), seeds)


def _arrivals(kind: Kind, n: int, capacity: float, rng: np.random.Generator) -> Floats:
    if kind.load is None:
        return np.zeros(n)
    if kind.name != "trace":
        return poisson(n, kind.load * capacity, rng)
    seconds = busiest_stretch(_trace_arrivals(), n)
    return seconds / (kind.load * capacity)


def busiest_stretch(arrivals: Floats, n: int) -> Floats:
    """Return the `n` consecutive arrivals that take the least time, from 0, with the whole trace at 1 request/s."""
    if n > len(arrivals):
        raise InputError(f"{n:,} requests of a trace of {len(arrivals):,}", source="--requests", hint="give fewer")
    rate = (len(arrivals) - 1) / (arrivals[-1] - arrivals[0])
    first = int(np.argmin(arrivals[n - 1 :] - arrivals[: len(arrivals) - n + 1]))
    return np.asarray((arrivals[first : first + n] - arrivals[first]) * rate)


def _trace_arrivals() -> Floats:
    try:
        return np.asarray(load_trace(_TRACE).arrival_s)
    except InputError:  # the full data is not there
        return np.asarray(load_trace(_PACKAGED_TRACE).arrival_s)
