"""Does the rate at which answers end fall with position, as TIE's theorem assumes?

Theorem 3.2 of TIE (arXiv 2604.00499) derives a power-law tail from an assumption on the rate of the end token. With
h(t) the probability that an answer of at least t tokens ends at t:

    h(t) constant    exponential tail           t h(t) grows as t, slope of ln h over ln t: 0
    h(t) = a / t     power law, exponent a      t h(t) constant, slope -1

Pooled over prompts h falls in any case: what is left at large t are the prompts with long answers. So positions are
measured in medians of the other samples of the same prompt, and the same estimate is made of simulated lengths of
the prompts' fitted geometric, log-normal and log-t distributions: what these controls show is due to the estimate.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.study import Run, Study, table_of
from lengthwise.errors import InputError
from lengthwise.files import data_home, read_parquet_table
from lengthwise.intervals import Ratio, draw_counts, interval
from lengthwise.lengths import TIE_NU
from lengthwise.lengths.families import LOGNORMAL, logt_family
from lengthwise.lengths.fit import fit_rows
from lengthwise.reports.tables import Table, multiple
from lengthwise.workloads import LengthSamples

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CUT: Final = 14_999
"""CASTILLO's samples of this length or more were cut off."""
MIN_SAMPLES: Final = 6
EDGES: Final = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
"""Of the bins of positions, in medians."""
TAIL: Final = 1.5
"""Positions above which the slope is estimated."""
MEASURED, GEOMETRIC, NORMAL, LOGT = "measured", "control: geometric", "control: log-normal", "control: log-t"
_MIN_EVENTS: Final = 30
_RESAMPLES: Final = 200


@dataclass(frozen=True)
class HazardGrid:
    """Rows are drawn at random, all LLMs together."""

    rows: int = 8000
    seed: int = 0


@dataclass(frozen=True)
class Bin:
    """Positions from `begin` to `end`, and position times hazard there with a 95 % interval over prompts."""

    begin: float
    end: float
    times_position: Ratio
    ends: int


@dataclass(frozen=True)
class Hazards:
    """One source of lengths; bins with fewer than 30 ends are left out. The slope is of ln h over ln t in the tail."""

    data: str
    kind: str
    rows: int
    bins: tuple[Bin, ...]
    slope: Ratio


@dataclass(frozen=True, eq=False)
class Answers:
    """Lengths (rows, samples); those not present are ignored, of a cut one only "at least" is known."""

    length: Floats
    present: Mask
    cut: Mask
    prompt: NDArray[np.int64]
    limit: float


def measure(run: Run, grid: HazardGrid) -> list[Hazards]:
    """Estimate the hazard of each source and of its controls."""
    sources = {"CASTILLO": _castillo(run.castillo(), grid)}
    smollm2 = _smollm2(grid)
    if smollm2 is None:
        run.note("LENGTHWISE_DATA holds no smollm2/lengths.parquet; its answers are left out")
    else:
        sources["SmolLM2-135M"] = smollm2
    found: list[Hazards] = []
    for name, answers in sources.items():
        for kind, each in _with_controls(answers, np.random.default_rng(grid.seed)):
            run.report(f"{name}, {kind}", len(found) / (4 * len(sources)))
            found.append(estimate_hazard(name, kind, each, grid.seed))
    return found


def _castillo(samples: LengthSamples, grid: HazardGrid) -> Answers:
    length = samples.lengths_matrix().astype(np.float64)
    keys = zip(samples.table["corpus"].to_pylist(), samples.table["prompt_id"].to_pylist(), strict=True)
    prompt = np.unique(["\n".join(key) for key in keys], return_inverse=True)[1]
    present = length > 0
    cut = (length >= CUT) | samples.capped_matrix()
    return _drawn(Answers(np.minimum(length, CUT), present, cut, prompt, float(CUT)), grid)


def _smollm2(grid: HazardGrid) -> Answers | None:
    home = data_home()
    file = None if home is None else Path(home) / "smollm2" / "lengths.parquet"
    if file is None or not file.is_file():
        return None
    table = read_parquet_table(file)
    length, cut = (_matrix(table[name]) for name in ("output_sizes", "capped"))
    limit = float(length.max())
    return _drawn(Answers(length, length > 0, cut > 0, np.arange(len(length)), limit), grid)


def _matrix(lists: pa.ChunkedArray) -> Floats:
    rows = lists.to_pylist()
    widest = max(map(len, rows))
    return np.array([[*map(float, row), *[0.0] * (widest - len(row))] for row in rows])


def _drawn(answers: Answers, grid: HazardGrid) -> Answers:
    usable = np.flatnonzero((answers.present & ~answers.cut).sum(axis=1) >= MIN_SAMPLES)
    if not len(usable):
        raise InputError(f"no prompt has {MIN_SAMPLES} finished samples")
    rows = np.random.default_rng(grid.seed).permutation(usable)[: grid.rows]
    columns = (answers.length[rows], answers.present[rows], answers.cut[rows], answers.prompt[rows])
    return Answers(*columns, answers.limit)


def _with_controls(answers: Answers, rng: np.random.Generator) -> Iterator[tuple[str, Answers]]:
    yield MEASURED, answers
    shape = answers.length.shape
    ended = (answers.present & ~answers.cut).sum(axis=1)
    rate = ended / np.where(answers.present, answers.length, 0.0).sum(axis=1)
    yield GEOMETRIC, _cut_at_limit(answers, rng.exponential(1.0, shape) / rate[:, None])
    for kind, family, standard in (
        (NORMAL, LOGNORMAL, rng.standard_normal(shape)),
        (LOGT, logt_family(TIE_NU), rng.standard_t(TIE_NU, shape)),
    ):
        mu, sigma = fit_rows(family, answers.length, answers.present, answers.cut).params[:, :2].T
        yield kind, _cut_at_limit(answers, np.exp(mu[:, None] + sigma[:, None] * standard))


def _cut_at_limit(answers: Answers, length: Floats) -> Answers:
    cut = length >= answers.limit
    return replace(answers, length=np.clip(np.ceil(length), 1.0, answers.limit), cut=cut)


def estimate_hazard(name: str, kind: str, answers: Answers, seed: int) -> Hazards:
    """Ends over exposure by bin, resampled over prompts; and the slope of the tail."""
    prompts, groups = np.unique(answers.prompt, return_inverse=True)
    counts = draw_counts(len(prompts), seed=seed, resamples=_RESAMPLES)
    position = np.where(answers.present, answers.length / _median_of_others(answers), 0.0)
    ended = answers.present & ~answers.cut
    begins, stops = np.array(EDGES[:-1]), np.array(EDGES[1:])
    ends, exposure = (np.zeros((len(prompts), len(begins))) for _ in range(2))
    for number, (begin, stop) in enumerate(itertools.pairwise(EDGES)):
        np.add.at(ends[:, number], groups, (ended & (position >= begin) & (position < stop)).sum(axis=1))
        np.add.at(exposure[:, number], groups, (np.clip(position, begin, stop) - begin).sum(axis=1))
    centre, total = np.sqrt(begins * stops), ends.sum(axis=0)
    kept = total >= _MIN_EVENTS
    tail = kept & (begins >= TAIL)
    with np.errstate(divide="ignore", invalid="ignore"):
        hazard = total / exposure.sum(axis=0)
        drawn = (counts @ ends) / (counts @ exposure)
        low, high = np.transpose([interval(column) for column in (centre * drawn).T])
        slopes = [_slope(centre[tail], each[tail], total[tail]) for each in (hazard, *drawn)]
    columns = (begins, stops, centre * hazard, low, high)
    bins = tuple(
        Bin(begin, stop, Ratio(*ratio), int(total[number]))
        for number in np.flatnonzero(kept)
        for begin, stop, *ratio in [[float(each[number]) for each in columns]]
    )
    slope = Ratio.none() if np.isnan(slopes).any() else Ratio(slopes[0], *interval(slopes[1:]))
    return Hazards(name, kind, len(position), bins, slope)


def _median_of_others(answers: Answers) -> Floats:
    """For each sample the median of the row's other ones, so that a sample does not set its own scale."""
    length = np.where(answers.present, answers.length, np.nan)
    count = length.shape[1]
    middle = np.empty_like(length)
    for sample in range(count):
        middle[:, sample] = np.nanmedian(np.delete(length, sample, axis=1), axis=1)
    return middle


def _slope(centre: Floats, hazard: Floats, ends: Floats) -> float:
    """Of ln hazard over ln position, weighted by ends."""
    if len(centre) < 2 or not (hazard > 0).all():
        return float("nan")
    return float(np.polyfit(np.log(centre), np.log(hazard), 1, w=np.sqrt(ends))[0])


def tables(found: Sequence[Hazards]) -> list[Table]:
    """The slope of the tail, then position times hazard."""
    slopes = table_of(
        "Does the rate of ending fall?",
        found,
        [("data", lambda each: each.data), ("lengths", lambda each: each.kind), ("slope", lambda each: each.slope)],
        [
            f"ln hazard over ln position, from {TAIL:g} medians of the prompt's other samples; 95 % over prompts.",
            "0: the rate does not fall (exponential tail). -1: it falls as 1/position (power law).",
            "Rows: " + ", ".join(f"{each.data} {each.rows:,}" for each in found if each.kind == MEASURED) + ".",
        ],
    )
    rows = []
    for begin, end in itertools.pairwise(EDGES):
        here = [next((bin_ for bin_ in each.bins if bin_.begin == begin), None) for each in found]
        if any(here):
            cells = ["–" if each is None else multiple(each.times_position) for each in here]
            rows.append([f"{begin:g} to {end:g}", *cells])
    columns = ("position", *(f"{each.data}, {each.kind}" for each in found))
    notes = ["Position times hazard: constant for a power law, growing with position where the rate does not fall."]
    return [slopes, Table("Position times hazard, by medians of the prompt's other samples", columns, rows, notes)]


def answer(found: Sequence[Hazards]) -> str:
    """The slope of each source's measured lengths, and what it means."""
    measured = [each for each in found if each.kind == MEASURED]
    falls = all(each.slope.high < 0 for each in measured)
    slopes = ", ".join(f"{each.slope.ratio:.2f} in {each.data}" for each in measured)
    words = (
        "The rate of ending falls in the tail" if falls else "The rate of ending does not fall everywhere in the tail"
    )
    return f"{words}: ln hazard over ln position has the slope {slopes}. At -1 it would be a power law."


STUDY: Study[HazardGrid, Sequence[Hazards]] = Study(
    name="hazard",
    title="The rate at which answers end, by position",
    question="Does the rate of ending fall with position, as TIE's theorem assumes?",
    paper="TIE, arXiv 2604.00499, theorem 3.2",
    source="CASTILLO, SmolLM2-135M's answers",
    grid=HazardGrid(),
    quick=HazardGrid(rows=1500),
    minutes=(1, 0.1),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
)
