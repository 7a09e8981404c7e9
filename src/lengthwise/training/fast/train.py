"""Trains the fast predictor on pairs of prompts and LLMs of any sources, and calibrates it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import Calibration, fit_calibration
from lengthwise.predictors.fast import OUTPUTS, FastPredictor
from lengthwise.predictors.llm_names import identify
from lengthwise.training.data import load_samples
from lengthwise.training.encoder.config import DataConfig
from lengthwise.training.fast.fit import Examples, FastRecipe, fit_network
from lengthwise.training.fast.word_tables import FOLDS, Vocabulary, learn_tables
from lengthwise.training.pairs import PairTable, score_pairs
from lengthwise.workloads.diverse import CASTILLO_GROUPS, load_diverse
from lengthwise.workloads.files import read_parquet_table

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

LEAST_PROMPTS: Final = 100
"""An LLM with fewer training prompts has no identity row: its lengths teach the row of unknown LLMs."""
HELD_OUT: Final = 0.06
"""Share of the prompts that calibrate."""
WIDENINGS: Final = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
TAUGHT_LLMS: Final = 8
"""LLMs without lengths for a prompt that are learned from the teacher there, drawn at random."""
_TEACHER_FIELDS: Final = ("prompt", "outputs")


@dataclass(frozen=True, eq=False)
class TeacherOutputs:
    """Predictions of a teacher as further targets: log median, log sigma, log mean and log std of prompts x LLMs."""

    texts: tuple[str, ...]
    llms: tuple[str, ...]
    outputs: Floats

    def select(self, texts: Sequence[str], llms: Sequence[str]) -> Floats:
        """Return the outputs for these texts and LLMs, (texts, LLMs, 4); NaN where there are none."""
        places = {text: place for place, text in enumerate(self.texts)}
        rows = np.array([places.get(text, -1) for text in texts])
        found = np.full((len(texts), len(llms), OUTPUTS), np.nan, np.float32)
        for column, llm in enumerate(llms):
            if llm in self.llms:
                found[rows >= 0, column] = self.outputs[rows[rows >= 0], self.llms.index(llm)]
        return found

    def fingerprint(self) -> str:
        """Return a hash of texts and outputs."""
        return hashlib.sha256("\x00".join(self.texts).encode("utf-8", "replace") + self.outputs.tobytes()).hexdigest()

    def write(self, path: Path) -> None:
        """Write one Parquet file."""
        flat = pa.FixedSizeListArray.from_arrays(pa.array(self.outputs.ravel()), self.outputs[0].size)
        table = pa.table({"prompt": pa.array(self.texts), "outputs": flat})
        pq.write_table(table.replace_schema_metadata({"llms": json.dumps(self.llms)}), path, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> TeacherOutputs:
        """Read a file of `write`."""
        table = read_parquet_table(path)
        metadata = table.schema.metadata or {}
        if b"llms" not in metadata or any(name not in table.column_names for name in _TEACHER_FIELDS):
            raise InputError(
                "has no outputs of a teacher",
                source=path,
                hint=f"columns {', '.join(_TEACHER_FIELDS)}, and llms as metadata",
            )
        llms = tuple(json.loads(metadata[b"llms"]))
        outputs = np.asarray(table["outputs"].combine_chunks().flatten(), np.float32)
        return cls(tuple(table["prompt"].to_pylist()), llms, outputs.reshape(-1, len(llms), OUTPUTS))


@dataclass(frozen=True, eq=False)
class FastTrainer:
    """One recipe for any table of pairs. `teacher` has predictions for some of the prompts; None: lengths only."""

    vocabulary: Vocabulary
    recipe: FastRecipe = field(default_factory=FastRecipe)
    teacher: TeacherOutputs | None = None

    def fit(self, table: PairTable, seed: int = 0) -> FastPredictor:
        """Train on all prompts of the table; the predictor is not calibrated."""
        vocabulary = self.vocabulary.of_texts(table.texts)
        levels, weight = table.levels(), table.prompt_weights()
        known = np.flatnonzero(table.prompts_per_llm() >= LEAST_PROMPTS)
        identity = np.full(len(table.llms), -1)
        identity[known] = np.arange(len(known))
        answers = np.bincount(table.prompt, minlength=len(table))
        pair_weight = (weight / np.sqrt(np.maximum(answers, 1)))[table.prompt]
        effect = np.bincount(table.prompt, table.log_mean() - levels[table.llm], len(table)) / np.maximum(answers, 1)
        folds = np.random.default_rng(seed).integers(0, FOLDS, len(table))
        pages = [vocabulary.reader.read(text) for text in table.texts]
        learned = learn_tables(pages, effect, vocabulary.meaning, folds, seed, weight * (answers > 0))
        examples = Examples(
            description=learned.describe(pages, folds),
            prompt=table.prompt,
            llm=table.llm,
            lengths=table.lengths,
            censored=table.censored,
            soft=np.full((len(table.prompt), OUTPUTS), np.nan, np.float32),
            weight=pair_weight / pair_weight.mean(),
            name_features=np.array([identify(llm).features() for llm in (*table.llms, "")], np.float32),
            levels=levels[:-1],
            identity=identity,
            absent=_absent(table, self.recipe.networks),
        )
        if self.teacher is not None:
            examples = _taught(examples, table, self.teacher, seed)
        network = fit_network(examples, self.recipe, seed)
        llms = tuple(table.llms[number] for number in known)
        return FastPredictor(
            vocabulary.reader, learned.tables, network, llms, np.append(levels[known], levels[-1]), Calibration()
        )


def _absent(table: PairTable, networks: int) -> list[NDArray[np.bool_]]:
    """Return for each network the prompts of every n-th group outside CASTILLO."""
    present = [name for name in table.groups if name not in CASTILLO_GROUPS and table.in_groups([name]).any()]
    return [table.in_groups(present[number::networks]) for number in range(networks)] if networks > 1 else []


def predicted(predictor: FastPredictor, table: PairTable) -> tuple[Doubles, Doubles, float]:
    """Return mu, sigma and nu of every pair."""
    found = predictor.predict([table.texts[i] for i in table.prompt], [table.llms[i] for i in table.llm])
    return found.mu, found.sigma, found.nu


def training_pairs(*, ships: bool) -> PairTable:
    """Return CASTILLO with SmolLM2's lengths, and the diverse prompts; with `ships` those of clear licences only."""
    castillo = load_samples(DataConfig(smollm2=True))
    return PairTable.of(castillo, load_diverse(known_llms=castillo.llms, ships=ships))


def official_test(table: PairTable) -> PairTable:
    """Return the official test prompts of CASTILLO's six corpora."""
    return table.take(table.test & table.in_groups(list(CASTILLO_GROUPS)))


@dataclass(frozen=True, eq=False)
class LeftOutPairs:
    """Pairs of prompts that a predictor was not trained on, and its predictions for them."""

    table: PairTable
    mu: Doubles
    sigma: Doubles
    """Of the network, without widening."""
    apart: Doubles
    """Variance of the networks' log medians."""

    @classmethod
    def of(cls, predictor: FastPredictor, table: PairTable) -> LeftOutPairs:
        """Predict without widening, and with widening 1 to see the variance."""
        mu, narrow, _ = predicted(replace(predictor, widening=0.0), table)
        _, wide, _ = predicted(replace(predictor, widening=1.0), table)
        return cls(table, mu, narrow, np.maximum(wide**2 - narrow**2, 0.0))

    def spread(self, widening: float) -> Doubles:
        """Return sigma with this widening."""
        return np.asarray(np.sqrt(self.sigma**2 + widening * self.apart))


def fit_widening(parts: Sequence[LeftOutPairs], nu: float) -> float:
    """Return the widening at which 90 % intervals cover 90 % of the lengths of left-out groups, groups equal."""

    def covered(widening: float) -> float:
        return float(np.mean([score_pairs(p.table, p.mu, p.spread(widening), nu).coverage_90 for p in parts]))

    tried = [(widening, covered(widening)) for widening in WIDENINGS]
    return min(tried, key=lambda pair: abs(pair[1] - 0.9))[0]


def calibrated(
    trainer: FastTrainer, train: PairTable, widening: float, seed: int
) -> tuple[FastPredictor, dict[str, Any]]:
    """Train on all but a few prompts, on which each LLM is calibrated; return the predictor and its figures."""
    held = np.random.default_rng(seed).random(len(train)) < HELD_OUT
    fitted, out = replace(trainer.fit(train.take(~held), seed), widening=widening), train.take(held)
    names = [train.llms[number] for number in out.llm]
    texts = [out.texts[number] for number in out.prompt]
    weights = out.prompt_weights()[out.prompt]
    truth: dict[str, Any] = {"lengths": out.lengths, "present": out.lengths > 0, "censored": out.censored}
    known = fit_calibration(fitted.predict(texts, names), names, **truth, weights=weights)
    unknown = fit_calibration(fitted.predict(texts, [""] * len(texts)), [""] * len(texts), **truth, weights=weights)
    by_llm = {llm: each for llm, each in known.by_llm.items() if llm in fitted.llms}
    predictor = replace(fitted, calibration=Calibration(unknown.others, by_llm, known.nu), _llm_cache={})
    return predictor, {"held_out": asdict(score_pairs(out, *predicted(predictor, out))), "widening": widening}


def capped(table: PairTable, prompts: int, seed: int = 0) -> PairTable:
    """Return at most so many prompts of each group outside CASTILLO, drawn at random."""
    order = np.random.default_rng(seed).permutation(len(table))
    rank = np.zeros(len(table), np.intp)
    for number, name in enumerate(table.groups):
        own = order[table.group[order] == number]
        rank[own] = 0 if name in CASTILLO_GROUPS else np.arange(len(own))
    return table.take(rank < prompts)


def _taught(examples: Examples, table: PairTable, teacher: TeacherOutputs, seed: int) -> Examples:
    """Add the teacher's outputs to the pairs, and pairs that only the teacher has."""
    llms = [number for number, llm in enumerate(table.llms) if llm in teacher.llms]
    soft = teacher.select(table.texts, [table.llms[number] for number in llms])
    chance = np.random.default_rng(seed).random(soft.shape[:2])
    chance[~np.isfinite(soft[..., 0])] = np.inf
    column_of = np.full(len(table.llms), -1)
    column_of[llms] = np.arange(len(llms))
    column = column_of[examples.llm]
    has = column >= 0
    own = examples.soft.copy()
    own[has] = soft[examples.prompt[has], column[has]]
    chance[examples.prompt[has], column[has]] = np.inf
    few = np.sort(chance, axis=1)[:, min(TAUGHT_LLMS, len(llms)) - 1 :][:, :1]
    prompt, taught = np.nonzero((chance <= few) & np.isfinite(chance))
    usual = np.bincount(examples.prompt, examples.weight, len(table)) / np.maximum(
        np.bincount(examples.prompt, minlength=len(table)), 1
    )
    rows = np.concatenate([examples.prompt, prompt])
    order = np.argsort(rows, kind="stable")
    spare = np.zeros((len(prompt), examples.lengths.shape[1]), bool)
    return replace(
        examples,
        prompt=rows[order],
        llm=np.concatenate([examples.llm, np.array(llms, np.intp)[taught]])[order],
        lengths=np.concatenate([examples.lengths, spare])[order],
        censored=np.concatenate([examples.censored, spare])[order],
        soft=np.concatenate([own, soft[prompt, taught]])[order],
        weight=np.concatenate([examples.weight, usual[prompt]])[order],
    )
