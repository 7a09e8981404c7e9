"""The paper's baseline (its appendix A.2) asked of a real LLM: it states how long its answer will be, then answers.

    python -m experiments.castillo ask                                       # SmolLM2-135M, embedded
    python -m experiments.castillo ask --url http://HOST:PORT --llm llama-3.1-8B -o replies.parquet

The replies are kept as one Parquet file, so that lengths can be parsed from them again; the study `castillo` scores
them. Prompts are the six corpora's test prompts that have lengths of that LLM. Replies are stored after every batch;
the same command asks about the prompts that are missing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.castillo.rows import UNSEEN
from lengthwise.errors import InputError
from lengthwise.files import atomic_path, read_parquet_table
from lengthwise.intervals import draw_rows, interval
from lengthwise.predictors.ask import AskPredictor, parse_length
from lengthwise.reports.tables import Table
from lengthwise.traffic import scores
from lengthwise.training.data import SMOLLM2, load_samples
from lengthwise.training.encoder.config import DataConfig
from lengthwise.workloads import LengthSamples

KEPT: Final = Path(__file__).parent.parent / "results" / "castillo" / "prompt_method.parquet"
_CONTEXT: Final = 4096  # tokens; CASTILLO's prompts have at most 2,500
_BATCH: Final = 20
_COLUMNS: Final = ("llm", "corpus", "prompt_id")

_EMPTY: Final = pa.schema([(name, pa.string()) for name in (*_COLUMNS, "reply")]).empty_table()


@dataclass(frozen=True)
class PromptMethod:
    """What an LLM states about its own lengths, against the mean of its sampled answers."""

    llm: str
    prompts: int
    stated: int
    """Prompts at which it stated a length at all."""
    mae: float
    mse: float
    """Over the prompts with a stated length."""
    mae_interval: tuple[float, float]
    """95 % over prompts."""
    constant_mae: float
    """The median of the true lengths: the best constant on the same prompts."""


def tested(llm: str) -> LengthSamples:
    """The six corpora's test prompts with the lengths of an LLM."""
    samples = load_samples(DataConfig(smollm2=True)).where(llm=llm, split="test")
    return samples.where(corpus=[corpus for corpus in samples.corpora if corpus != UNSEEN])


def ask(
    samples: LengthSamples,
    predictor: AskPredictor,
    *,
    known: pa.Table | None = None,
    limit: int | None = None,
    store: Callable[[pa.Table], None] = lambda _: None,
) -> pa.Table:
    """Ask until every prompt, or `limit` of them, has a reply; return llm, corpus, prompt_id and reply.

    `known` has earlier replies. Prompts are asked in a random order, so that a run that is stopped leaves a sample of
    all of them; all replies so far go to `store` after every batch.
    """
    replies = _EMPTY if known is None else known
    if not set(replies["llm"].to_pylist()) <= set(samples.llms):
        raise InputError("has replies of another LLM", field="--out", hint="give another file")
    seen = set(zip(*(replies[name].to_pylist() for name in _COLUMNS), strict=True))
    table = samples.table.take(pa.array(np.random.default_rng(0).permutation(len(samples))))
    keys = zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    table = table.filter(pa.array([key not in seen for key in keys], pa.bool_()))
    if limit is not None:
        table = table.slice(0, max(0, limit - len(replies)))
    for first in range(0, len(table), _BATCH):
        batch = table.slice(first, _BATCH)
        answered = pa.array(predictor.replies(batch["prompt"].to_pylist()), pa.string())
        named = batch.select(_COLUMNS).append_column("reply", answered)
        replies = pa.concat_tables([replies.cast(_EMPTY.schema), named.cast(_EMPTY.schema)])
        store(replies)
        print(f"{len(replies)} of {len(seen) + len(table)}", file=sys.stderr)  # noqa: T201
    return replies


def score(replies: pa.Table, samples: LengthSamples, *, draws: int = 1000) -> PromptMethod:
    """Score the lengths parsed from replies against the mean of the LLM's clean samples."""
    llms = set(replies["llm"].to_pylist())
    if len(llms) != 1:
        raise InputError(f"replies of {len(llms)} LLMs", field="llm", hint="give the replies of one LLM")
    rows = samples.where(llm=llms.pop())
    keys = zip(rows.table["corpus"].to_pylist(), rows.table["prompt_id"].to_pylist(), strict=True)
    known = dict(zip(keys, rows.clean_mean().tolist(), strict=True))
    asked = zip(*(replies[name].to_pylist() for name in ("corpus", "prompt_id", "reply")), strict=True)
    pairs = [(parse_length(reply), known[corpus, ident]) for corpus, ident, reply in asked if (corpus, ident) in known]
    if not pairs:
        raise InputError("no reply is to a prompt of these samples", source=samples.origin)
    both = np.array([(stated, true) for stated, true in pairs if stated is not None], np.float64).reshape(-1, 2)
    stated, true = both[:, 0], both[:, 1]
    error = np.abs(stated - true)
    resampled = error[draw_rows(len(both), seed=0, resamples=draws)].mean(axis=1) if len(both) else math.nan
    median = np.median([true for _, true in pairs])
    constant = scores.mae(np.full(len(true), median), true)
    mae, mse = scores.mae(stated, true), scores.mse(stated, true)
    return PromptMethod(rows.llms[0], len(pairs), len(both), mae, mse, interval(resampled), constant)


def table(found: PromptMethod, paper: tuple[str, float, float]) -> Table:
    """The baseline of table 4: the paper's figures and those of the LLM that was asked."""
    llm, mse, mae = paper
    low, high = found.mae_interval
    rows = [
        (llm, "paper", "–", f"{mae:,.1f}", f"{mse:,.0f}", "–"),
        (
            found.llm,
            "asked",
            f"{found.stated} of {found.prompts}",
            f"{found.mae:,.1f} [{low:,.1f}, {high:,.1f}]",
            f"{found.mse:,.0f}",
            f"{found.constant_mae:,.1f}",
        ),
    ]
    columns = ("LLM", "", "states a length", "MAE(mean)", "MSE(mean)", "MAE of a constant")
    notes = [
        "Against the mean of the LLM's clean samples, over the prompts at which it states a length; 95 % over prompts.",
        "The number counts as tokens, whatever unit the reply names, as in the paper.",
    ]
    return Table("Table 4, baseline: the prompt method", columns, rows, notes)


def read(path: Path = KEPT) -> pa.Table:
    """Read replies that `ask` made."""
    return read_parquet_table(path)


def keep(out: Path = KEPT, *, llm: str = SMOLLM2, url: str | None = None, limit: int | None = None) -> None:
    """Ask an LLM about every prompt, or about `limit` of them, and keep its replies in `out`; no URL: SmolLM2."""
    out.parent.mkdir(parents=True, exist_ok=True)

    def store(replies: pa.Table) -> None:
        with atomic_path(out) as temporary:
            pq.write_table(replies, temporary, compression="zstd")

    with ExitStack() as stack:
        if url is None:
            from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions

            options = EngineOptions(plugin=False, predictor="none", max_model_len=_CONTEXT)
            url = stack.enter_context(EmbeddedEngine(options)).url
        known = read(out) if out.is_file() else None
        ask(tested(llm), AskPredictor(url, timeout_s=1800.0), known=known, limit=limit, store=store)
