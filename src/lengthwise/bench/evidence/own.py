"""Setting b: the embedded LLM's own answers, freely sampled with one seed per request.

The penalty is on frequency, which counts the answer's own tokens only. vLLM's repetition penalty also counts the
prompt's, among them the mark that ends a turn, and makes a small LLM run on. The predictor is first adapted to this LLM
on lengths collected with that very sampling, of prompts that are not in the test; how long an answer really is, is what
the stock run with the same seeds gave.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash
from scipy import stats

from lengthwise.bench.evidence.plan import ORACLE, predictor_label
from lengthwise.bench.evidence.traffic import PLAYED, Count, Sizes, Traffic, six_corpora, usable
from lengthwise.engines.collect import CollectPlan, CollectReport, Prompt, collect
from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.errors import InputError
from lengthwise.predictors.adapt import adapt_file, read_observed
from lengthwise.workloads import LengthSamples, load_castillo
from lengthwise.workloads.arrivals import generator, in_rounds, poisson

SAMPLING: Final = {"temperature": 0.7, "top_p": 0.9, "frequency_penalty": 0.4}
FOLDER: Final = "own"
"""Beside the cells."""
_LENGTHS: Final = "lengths.parquet"
_LEARNED_FROM: Final = ("train", "validate")
_ANSWERS_EACH: Final = 2
_LIMIT: Final = 512
"""Tokens of a collected answer: above the cap of the cells, so that fewer lengths are cut off."""
_AT_ONCE: Final = 16


def own_traffic(samples: LengthSamples, sizes: Sizes, repeat: int, count: Count | None) -> Traffic:
    """The traffic of setting b: the prompts are setting a's, the lengths nobody knows yet."""
    seed, n = sizes.seed + repeat, sizes.own_n
    rows, tokens, left_out = usable(samples, count, sizes.longest_prompt)
    picks = in_rounds(len(rows), n, generator(seed, "prompts"))
    return Traffic(
        prompts=samples.table["prompt"].take(pa.array(rows[picks])).to_pylist(),
        prompt_tokens=tokens[rows[picks]],
        lengths=np.full(n, sizes.cap, np.int64),
        arrivals=poisson(n, 1.0, generator(seed, "arrivals")),
        cap=sizes.cap,
        origin=samples.origin,
        left_out=left_out,
        free=True,
        sampling=[{**SAMPLING, "seed": request_seed(seed, row)} for row in range(n)],
    )


def request_seed(seed: int, row: int) -> int:
    """The seed of one answer, the same under every policy."""
    return xxhash.xxh3_64_intdigest(f"answer {seed} {row}".encode()) >> 33


@dataclass(frozen=True)
class Own:
    """What setting b needs beside its traffic, kept in a folder and made once: lengths, and adapted predictors."""

    folder: Path
    sizes: Sizes
    say: Callable[[str], None]
    url: str | None = None

    @property
    def lengths(self) -> Path:
        """What was collected."""
        return self.folder / _LENGTHS

    def predictor(self, name: str, count: Count | None) -> str:
        """The file of the predictor adapted to the LLM; what is told is told as it is."""
        if name == ORACLE:
            return name
        path = self.folder / f"{predictor_label(name)}.lw"
        if not path.is_file():
            self._collect(count)
            self.say(f"  adapting {predictor_label(name)} to {self.sizes.own_lengths} lengths")
            report = adapt_file(name, read_observed(self.lengths, None), path)
            self.say(f"  adapted: tau {report.before.tau:.2f} -> {report.after.tau:.2f} on prompts not learned from")
        return str(path)

    def _collect(self, count: Count | None) -> None:
        """Ask the engine for lengths; stopped, it goes on where it was."""
        if self.lengths.is_file():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        prompts = learning_prompts(self.sizes, count)
        self.say(f"  collecting {_ANSWERS_EACH} answers to each of {len(prompts)} prompts that are not in the test")
        if self.url is not None:
            self._ask(self.url, prompts)
            return
        with EmbeddedEngine(EngineOptions(policy="fcfs", plugin=False, max_num_seqs=_AT_ONCE)) as engine:
            self._ask(engine.url, prompts)

    def _ask(self, url: str, prompts: Sequence[Prompt]) -> None:
        plan = CollectPlan(
            url,
            self.lengths,
            samples=_ANSWERS_EACH,
            temperature=SAMPLING["temperature"],
            top_p=SAMPLING["top_p"],
            frequency_penalty=SAMPLING["frequency_penalty"],
            max_tokens=_LIMIT,
            at_once=_AT_ONCE,
            timeout_s=3600.0,
        )
        report = CollectReport(len(prompts), plan.samples)

        asyncio.run(collect(prompts, plan, report, lambda: None))
        if report.interrupted:
            raise KeyboardInterrupt
        if report.whole_prompts < report.prompts:
            raise InputError(f"answers are missing: {dict(report.errors)}", source=url, hint="run the same again")


def learning_prompts(sizes: Sizes, count: Count | None) -> list[Prompt]:
    """Prompts of the train and validate splits, none of them in the test: half as many as lengths are wanted."""
    samples = six_corpora(load_castillo(split=_LEARNED_FROM)).where(llm=PLAYED)
    rows, _, _ = usable(samples, count, sizes.longest_prompt)
    wanted = max(1, sizes.own_lengths // _ANSWERS_EACH)
    picks = generator(sizes.seed, "learning prompts").permutation(len(rows))[:wanted]
    table = samples.table.take(pa.array(rows[picks]))
    names = ("corpus", "prompt_id", "prompt", "split")
    return [Prompt(*row) for row in zip(*(table[name].to_pylist() for name in names), strict=True)]


def ceiling_of(results: Path) -> dict[str, float] | None:
    """How well any predictor could rank these answers; None where nothing is collected."""
    lengths = results / FOLDER / _LENGTHS
    return noise_ceiling(LengthSamples.read(lengths)) if lengths.is_file() else None


def noise_ceiling(samples: LengthSamples) -> dict[str, float]:
    """How alike two answers to the same prompt are, and what knowing the prompt's typical length could reach.

    Tau between the two; with r = sin(pi/2 tau), the best tau against one answer is 2/pi * asin(sqrt(r)), as for
    correlated normal scores.
    """
    lengths = samples.lengths_matrix()
    tau = float(stats.kendalltau(lengths[:, 0], lengths[:, 1]).statistic)
    alike = max(0.0, math.sin(math.pi / 2 * tau))
    return {
        "prompts": float(len(samples)),
        "tau_of_two_answers": tau,
        "tau_at_best": 2 / math.pi * math.asin(math.sqrt(alike)),
        "cut_off": float(samples.capped_matrix().mean()),
        "mean_tokens": float(lengths.mean()),
    }


def sampling_said() -> str:
    """For people."""
    return json.dumps(SAMPLING).strip("{}").replace('"', "")


def settings() -> dict[str, Any]:
    """What all cells of the setting must agree in."""
    return {"own_sampling": dict(SAMPLING), "own_limit": _LIMIT}
