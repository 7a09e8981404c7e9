"""`CastilloProfile` as tables: ours beside the paper's."""

from __future__ import annotations

from lengthwise.reports.tables import Table, share
from lengthwise.workloads.castillo_profile import PAPER_TABLE_1, CastilloProfile, LengthProfile, PromptTokens

__all__ = ["tables"]

_STATISTICS = ("Mean", "Min.", "P25", "P50", "P75", "P99", "Max.")


def tables(profile: CastilloProfile) -> list[Table]:
    """The paper's table 1, then answer lengths by corpus, by LLM and by both."""
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
    values = (tokens.mean, tokens.min, tokens.p25, tokens.p50, tokens.p75, tokens.p99, tokens.max)
    return (f"{tokens.prompts:,}", *(f"{value:,.1f}".removesuffix(".0") for value in values))


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
