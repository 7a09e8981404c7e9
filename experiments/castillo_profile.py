"""CASTILLO as its paper describes it: table 1 and figures 1 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.figures import COLOURS, boxes, describe, figure, save
from experiments.study import Study
from lengthwise.llm_names import short_name
from lengthwise.reports.tables import Table, share
from lengthwise.workloads import LengthSamples

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

TRIM: Final = 0.01
"""Share of the largest values that figures 2 to 4 of the paper leave out."""


@dataclass(frozen=True)
class PromptTokens:
    """Lengths of a corpus's prompts, in tokens."""

    prompts: int
    mean: float
    min: float
    p25: float
    p50: float
    p75: float
    p99: float
    max: float

    @classmethod
    def of(cls, tokens: NDArray[np.int64]) -> PromptTokens:
        """Return the statistics of one count per prompt."""
        p25, p50, p75, p99 = (float(q) for q in np.quantile(tokens, [0.25, 0.5, 0.75, 0.99]))
        return cls(len(tokens), float(tokens.mean()), float(tokens.min()), p25, p50, p75, p99, float(tokens.max()))


PAPER_TABLE_1: Final[Mapping[str, PromptTokens]] = {
    "DollyDataset": PromptTokens(2000, 125.9, 36, 44, 50, 146, 795.2, 4003),
    "ShareGPT": PromptTokens(2000, 260.5, 36, 48, 64, 168, 2534.0, 4003),
    "Alpaca": PromptTokens(2000, 53.7, 39, 45, 49, 57, 114.0, 397),
    "Mbpp": PromptTokens(974, 153.5, 88, 109, 131, 173, 336.3, 2265),
    "Apps": PromptTokens(2000, 545.0, 87, 307.7, 441, 650, 2105.0, 2534),
    "DS1000": PromptTokens(1000, 317.2, 67, 170.5, 283, 395, 1018.3, 2109),
    "BigCodeBench": PromptTokens(1140, 179.8, 87, 137, 164, 205, 398.4, 1251),
}
"""Table 1 of the paper, as printed there (DS1000 is its DS-1000)."""


@dataclass(frozen=True)
class LengthProfile:
    """Answer lengths of one corpus, or of one LLM, or of both together."""

    corpus: str
    llm: str
    rows: int
    mean: float
    """Mean over rows of the mean of a row's clean samples."""
    median_std: float
    """Median over rows of the standard deviation of a row's clean samples."""
    degenerate: float
    """Share of samples left out as degenerate: length >= 14,999, or > 8,499 where std > 2 mean."""


@dataclass(frozen=True, eq=False)
class CastilloProfile:
    """Data of the tables and the figure."""

    origin: str
    rows: int
    prompt_tokens: Mapping[str, PromptTokens]
    without_llama: int
    """Prompts without a row of any Llama: their Llama token counts are unknown, so table 1 leaves them out."""
    by_corpus: tuple[LengthProfile, ...]
    by_llm: tuple[LengthProfile, ...]
    by_both: tuple[LengthProfile, ...]
    lengths: Mapping[str, Array]
    """Every sampled length by LLM, degenerate ones included."""
    means: Mapping[str, Array]
    """Mean of each row's samples by LLM, degenerate ones included, as in the paper."""
    stds: Mapping[str, Array]


def trimmed(values: Array) -> Array:
    """Return the values without the largest 1 %."""
    return values[values <= np.quantile(values, 1 - TRIM)]


def profile_castillo(samples: LengthSamples) -> CastilloProfile:
    """Compute statistics of prompts and answers, by corpus and by LLM."""
    corpus, llm = (np.array(samples.table[name].to_pylist(), object) for name in ("corpus", "llm"))
    lengths = samples.lengths_matrix()
    clean = samples.clean_mask()
    tokens, missing = _llama_tokens(samples)
    everywhere = np.ones(len(lengths), bool)
    corpora = {name: corpus == name for name in samples.corpora}
    llms = {name: llm == name for name in samples.llms}

    def about(corpus_name: str, llm_name: str) -> LengthProfile:
        member = corpora.get(corpus_name, everywhere) & llms.get(llm_name, everywhere)
        return _profile(corpus_name, llm_name, lengths[member], clean[member])

    return CastilloProfile(
        origin=samples.origin,
        rows=len(lengths),
        prompt_tokens={name: PromptTokens.of(counts) for name, counts in tokens.items()},
        without_llama=missing,
        by_corpus=tuple(about(name, "all") for name in corpora),
        by_llm=tuple(about("all", name) for name in llms),
        by_both=tuple(about(c, m) for c in corpora for m in llms if (corpora[c] & llms[m]).any()),
        lengths={name: lengths[member].ravel().astype(np.float64) for name, member in llms.items()},
        means={name: lengths[member].mean(axis=1) for name, member in llms.items()},
        stds={name: lengths[member].std(axis=1) for name, member in llms.items()},
    )


def _llama_tokens(samples: LengthSamples) -> tuple[dict[str, NDArray[np.int64]], int]:
    """Return one token count per prompt, by corpus, from any Llama's row: they share tokenizer and chat template.

    The second value is the number of prompts without such a row.
    """
    columns = (samples.table[name].to_pylist() for name in ("corpus", "prompt_id", "llm", "input_tokens"))
    counts: dict[tuple[str, str], int | None] = {}
    for corpus, prompt, llm, tokens in zip(*columns, strict=True):
        if counts.setdefault((corpus, prompt)) is None and "llama" in llm.lower():
            counts[corpus, prompt] = tokens
    by_corpus: dict[str, list[int]] = {}
    for (corpus, _), count in counts.items():
        if count is not None:
            by_corpus.setdefault(corpus, []).append(count)
    missing = sum(count is None for count in counts.values())
    return {corpus: np.array(by_corpus[corpus]) for corpus in sorted(by_corpus)}, missing


def _profile(corpus: str, llm: str, lengths: NDArray[np.int64], clean: NDArray[np.bool_]) -> LengthProfile:
    values = np.where(clean, lengths, np.nan)[clean.any(axis=1)]
    mean = median_std = float("nan")
    if len(values):
        mean, median_std = float(np.nanmean(values, axis=1).mean()), float(np.median(np.nanstd(values, axis=1)))
    return LengthProfile(corpus, llm, len(lengths), mean, median_std, float(1 - clean.mean()))


_STATISTICS = ("Mean", "Min.", "P25", "P50", "P75", "P99", "Max.")


def tables(profile: CastilloProfile) -> list[Table]:
    """Return the paper's table 1, then answer lengths by corpus, by LLM and by both."""
    return [
        _prompt_tokens(profile),
        _lengths("Answer lengths by corpus", "corpus", [(row.corpus, row) for row in profile.by_corpus]),
        _lengths("Answer lengths by LLM", "llm", [(row.llm, row) for row in profile.by_llm]),
        _both(profile),
    ]


def _prompt_tokens(profile: CastilloProfile) -> Table:
    rows: list[tuple[str, ...]] = []
    begins = set()
    for corpus in (*PAPER_TABLE_1, *sorted(set(profile.prompt_tokens) - set(PAPER_TABLE_1))):
        begins.add(len(rows))
        if corpus in profile.prompt_tokens:
            rows.append((corpus, "here", *_statistics(profile.prompt_tokens[corpus])))
        if corpus in PAPER_TABLE_1:
            name = "" if corpus in profile.prompt_tokens else corpus
            rows.append((name, "paper", *_statistics(PAPER_TABLE_1[corpus])))
    notes = ["Tokens of the Llama tokenizer with its chat template, one count per prompt."]
    if profile.without_llama:
        notes.append(f"Left out: {profile.without_llama:,} prompts no Llama has a row of.")
    title = f"Table 1: prompt tokens by corpus ({profile.rows:,} rows of {profile.origin})"
    return Table(title, ("corpus", "", "Samples", *_STATISTICS), rows, notes, frozenset(begins - {0}))


def _statistics(tokens: PromptTokens) -> tuple[str, ...]:
    prompts, *values = astuple(tokens)
    return (f"{prompts:,}", *(f"{value:,.1f}".removesuffix(".0") for value in values))


def _lengths(title: str, by: str, rows: list[tuple[str, LengthProfile]]) -> Table:
    return Table(
        title,
        (by, "rows", "mean length", "median std within a prompt", "degenerate samples"),
        [
            (name, f"{row.rows:,}", f"{row.mean:,.1f}", f"{row.median_std:,.1f}", share(row.degenerate))
            for name, row in rows
        ],
        ["Clean samples. Degenerate, left out: length >= 14,999, or > 8,499 where std > 2 mean."],
    )


def _both(profile: CastilloProfile) -> Table:
    corpora = [row.corpus for row in profile.by_corpus]
    found = {(row.llm, row.corpus): row for row in profile.by_both}
    rows = []
    for llm in (row.llm for row in profile.by_llm):
        cells = [found.get((llm, corpus)) for corpus in corpora]
        rows.append((llm, *("–" if cell is None else f"{cell.mean:,.0f} / {cell.median_std:,.0f}" for cell in cells)))
    return Table("Mean length / median std within a prompt, by LLM and corpus", ("llm", *corpora), rows)


_FIGURE_1 = "Llama-3.2-1B"
_FIGURE_2 = ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B")


def draw(profile: CastilloProfile, path: Path) -> None:
    """Write the figure."""
    with figure(2, 2, size=(14, 9.5), title=f"CASTILLO: {profile.rows:,} rows, ten samples each") as (drawing, axes):
        _raw(axes[0], profile)
        _trimmed(axes[1], profile)
        _by_llm(axes[2], profile.means, "Figure 3: mean length per prompt (top 1 % left out)")
        _by_llm(axes[3], profile.stds, "Figure 4: std of length per prompt (top 1 % left out)")
        save(drawing, path)


def _raw(axes: Axes, profile: CastilloProfile) -> None:
    for llm, lengths in profile.lengths.items():
        if short_name(llm) == _FIGURE_1:
            axes.hist(lengths, bins=np.arange(0, 15_251, 250).tolist(), color=COLOURS[0])
    axes.set_yscale("log")
    describe(axes, f"Figure 1: raw lengths of {_FIGURE_1}, mass at both ends", x="output tokens", y="samples")


def _trimmed(axes: Axes, profile: CastilloProfile) -> None:
    shown = {short_name(llm): trimmed(lengths) for llm, lengths in profile.lengths.items()}
    shown = {name: shown[name] for name in _FIGURE_2 if name in shown}
    longest = max((values.max() for values in shown.values()), default=1.0)
    for (name, values), colour in zip(shown.items(), COLOURS, strict=False):
        bins = np.linspace(0, longest, 61).tolist()
        style: dict[str, Any] = {"facecolor": (colour, 0.22), "edgecolor": colour, "linewidth": 1.8, "label": name}
        axes.hist(values, bins=bins, histtype="stepfilled", density=True, **style)
    axes.set(xlim=(0, longest), yticks=[])
    describe(axes, "Figure 2: length distributions (top 1 % left out)", x="output tokens", legend_at="upper right")


def _by_llm(axes: Axes, values: Mapping[str, Array], title: str) -> None:
    boxes(axes, {short_name(llm): trimmed(data) for llm, data in values.items()})
    axes.set_xlim(left=0)
    describe(axes, title, x="tokens")


@dataclass(frozen=True)
class CastilloProfileGrid:
    """All of CASTILLO."""


STUDY: Study[CastilloProfileGrid, CastilloProfile] = Study(
    name="castillo_profile",
    title="CASTILLO as its paper describes it",
    question="Are CASTILLO's rows those that its paper describes?",
    paper="CASTILLO, table 1, figures 1 to 4",
    source="CASTILLO",
    grid=CastilloProfileGrid(),
    quick=CastilloProfileGrid(),
    minutes=(0.2, 0.2),
    serial=True,
    measure=lambda run, _: profile_castillo(run.castillo()),
    tables=tables,
    draw=draw,
)
