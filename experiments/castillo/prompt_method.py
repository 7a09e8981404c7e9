"""The paper's baseline (its appendix A.2) asked of a real LLM: it states how long its answer will be, then answers.

    python -m experiments.castillo ask                                       # SmolLM2-135M, embedded
    python -m experiments.castillo ask --url http://HOST:PORT --llm llama-3.1-8B -o replies.parquet

The replies are kept as one Parquet file, so that lengths can be parsed from them again; the study `castillo` scores
them. Prompts are the six corpora's test prompts that have lengths of that LLM.
"""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.castillo.rows import UNSEEN
from lengthwise.errors import InputError
from lengthwise.predictors import scores
from lengthwise.predictors.ask import AskPredictor, parse_length
from lengthwise.reports.tables import Table
from lengthwise.simulator.paired import interval_over_pairs
from lengthwise.training.data import SMOLLM2, load_samples
from lengthwise.training.encoder.config import DataConfig
from lengthwise.workloads import LengthSamples
from lengthwise.workloads.files import atomic_path, read_parquet_table

KEPT: Final = Path(__file__).parent.parent / "results" / "castillo" / "prompt_method.parquet"
_CONTEXT: Final = 4096  # tokens; CASTILLO's prompts have at most 2,500
_BATCH: Final = 64

Floats = NDArray[np.float64]


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
    tau: float
    tau_interval: tuple[float, float]
    constant_mae: float
    """The median of the true lengths: the best constant on the same prompts."""
    median_stated: float
    median_true: float


def tested(llm: str) -> LengthSamples:
    """The six corpora's test prompts with the lengths of an LLM."""
    samples = load_samples(DataConfig(smollm2=True)).where(llm=llm, split="test")
    return samples.where(corpus=[corpus for corpus in samples.corpora if corpus != UNSEEN])


def ask(samples: LengthSamples, predictor: AskPredictor) -> pa.Table:
    """Ask about every prompt; return llm, corpus, prompt_id and reply."""
    prompts = samples.table["prompt"].to_pylist()
    replies: list[str] = []
    for first in range(0, len(prompts), _BATCH):
        replies += predictor.replies(prompts[first : first + _BATCH])
        print(f"{len(replies)} of {len(prompts)}", file=sys.stderr)  # noqa: T201
    return samples.table.select(["llm", "corpus", "prompt_id"]).append_column("reply", pa.array(replies))


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
    everything = np.array([true for _, true in pairs])
    rng = np.random.default_rng(0)
    draw = rng.integers(0, max(1, len(both)), (draws, len(both)))
    error = np.abs(stated - true)
    taus = [scores.kendall_tau(stated[i], true[i]) for i in draw[:200]] if len(both) > 1 else []
    return PromptMethod(
        llm=rows.llms[0],
        prompts=len(pairs),
        stated=len(both),
        mae=scores.mae(stated, true),
        mse=scores.mse(stated, true),
        mae_interval=_central(error[draw].mean(axis=1) if len(both) else error),
        tau=scores.kendall_tau(stated, true),
        tau_interval=_central(np.array(taus)),
        constant_mae=scores.mae(np.full(len(true), np.median(everything)), true),
        median_stated=float(np.median(stated)) if len(both) else math.nan,
        median_true=float(np.median(everything)),
    )


def _central(values: Floats) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return interval_over_pairs(known) if len(known) else (math.nan, math.nan)


def table(found: PromptMethod, paper: tuple[str, float, float]) -> Table:
    """The baseline of table 4: the paper's figures and those of the LLM that was asked."""
    llm, mse, mae = paper
    low, high = found.mae_interval
    rows = [
        (llm, "paper", "–", f"{mae:,.1f}", f"{mse:,.0f}", "–", "–", "–"),
        (
            found.llm,
            "asked",
            f"{found.stated} of {found.prompts}",
            f"{found.mae:,.1f} [{low:,.1f}, {high:,.1f}]",
            f"{found.mse:,.0f}",
            f"{found.constant_mae:,.1f}",
            f"{found.tau:.3f} [{found.tau_interval[0]:.3f}, {found.tau_interval[1]:.3f}]",
            f"{found.median_stated:,.0f} / {found.median_true:,.0f}",
        ),
    ]
    columns = (
        "LLM",
        "",
        "states a length",
        "MAE(mean)",
        "MSE(mean)",
        "MAE of a constant",
        "tau",
        "median stated / true",
    )
    notes = [
        "Against the mean of the LLM's clean samples, over the prompts at which it states a length; 95 % over prompts.",
        "The number counts as tokens, whatever unit the reply names, as in the paper.",
    ]
    return Table("Table 4, baseline: the prompt method", columns, rows, notes)


def read(path: Path = KEPT) -> pa.Table:
    """Read replies that `ask` made."""
    return read_parquet_table(path)


def keep(out: Path = KEPT, *, llm: str = SMOLLM2, url: str | None = None, limit: int | None = None) -> None:
    """Ask an LLM about every prompt, or about `limit` evenly spaced ones, and keep its replies; no URL: SmolLM2."""
    samples = tested(llm)
    if limit is not None:
        chosen = np.linspace(0, len(samples) - 1, min(limit, len(samples))).astype(np.int64)
        samples = LengthSamples(samples.table.take(pa.array(chosen)), samples.origin)
    with ExitStack() as stack:
        if url is None:
            from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions

            options = EngineOptions(plugin=False, predictor="none", max_model_len=_CONTEXT)
            url = stack.enter_context(EmbeddedEngine(options)).url
        replies = ask(samples, AskPredictor(url, timeout_s=1800.0))
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as temporary:
        pq.write_table(replies, temporary, compression="zstd")
