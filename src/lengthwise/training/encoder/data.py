"""Length samples as a pack: rows of the data, prompts as token ids, and further prompts without lengths.

Prompts without lengths are pieces of training prompts, and noise. A student that sees only its training prompts is
sure everywhere; on these it learns from an ensemble, which disagrees on noise, other scripts and empty prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, fit_rows
from lengthwise.lengths.families import logt_family
from lengthwise.predictors.llm_names import FEATURES, identify, resolve_llm
from lengthwise.training.encoder.pack import ASIDE, ELSEWHERE, HELD_OUT, TEST, TRAIN, UNLABELLED, Pack
from lengthwise.workloads import LengthSamples, load_castillo
from lengthwise.workloads.datasets import ALPACA, load_alpaca_lengths
from lengthwise.workloads.files import data_home, read_parquet_table

if TYPE_CHECKING:
    from lengthwise.predictors.encoder.text import TextEncoder
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


def load_samples(config: DataConfig) -> LengthSamples:
    """Return every row of the data, all splits; `make_pack` chooses those to train on."""
    if config.source == ALPACA:
        samples = load_alpaca_lengths()
    elif config.source is not None and Path(config.source).is_file():
        samples = LengthSamples.read(config.source)
    else:
        samples = load_castillo(config.source)
    if config.smollm2:
        samples = _with_smollm2(samples, config.source)
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


def make_pack(
    samples: LengthSamples, config: DataConfig, encoder: TextEncoder, unlabelled: Sequence[tuple[str, str | None]] = ()
) -> Pack:
    """Tokenise each prompt once and arrange its lengths by LLM; held-out prompts are drawn from the training splits."""
    table, prompt = prompt_table(samples)
    corpora = tuple(samples.corpora)
    corpus = np.array([corpora.index(name) for name in table["corpus"].to_pylist()], np.int8)
    texts = [*table["prompt"].to_pylist(), *(text for text, _ in unlabelled)]
    spare_corpus = [-1 if name is None else corpora.index(name) for _, name in unlabelled]
    lengths, censored, fitted = _by_llm(samples, prompt, len(table))
    tokens, offsets, sizes = encoder.encode_all(texts)
    spare = len(unlabelled)
    return Pack(
        tokens=tokens,
        offsets=offsets,
        sizes=sizes,
        lengths=_padded(lengths, spare, 0),
        censored=_padded(censored, spare, False),
        fitted=_padded(fitted, spare, np.nan),
        corpus=np.concatenate([corpus, np.array(spare_corpus, np.int8)]),
        part=_padded(_parts(table, config), spare, UNLABELLED),
        fold=np.random.default_rng(config.split_seed).integers(0, _FOLDS, len(texts)).astype(np.int8),
        features=np.array([*(identify(llm).features() for llm in samples.llms), unknown_features()], np.float32),
        llms=samples.llms,
        corpora=corpora,
        pad_id=encoder.pad_id,
        mask_id=encoder.mask_id,
    )


def trained_texts(samples: LengthSamples, config: DataConfig) -> list[tuple[str, str]]:
    """Return the training texts with their corpora, without held-out prompts and test splits."""
    table, _ = prompt_table(samples)
    pairs = list(zip(table["prompt"].to_pylist(), table["corpus"].to_pylist(), strict=True))
    return [pairs[i] for i in np.flatnonzero(_parts(table, config) == TRAIN)]


def prompt_table(samples: LengthSamples) -> tuple[pa.Table, NDArray[Any]]:
    """Return one row per prompt, and the prompt number of each row of the samples."""
    keys = pc.binary_join_element_wise(samples.table["corpus"], samples.table["prompt_id"], "\n").combine_chunks()
    coded = keys.dictionary_encode()
    prompt = coded.indices.to_numpy()
    first = np.full(len(coded.dictionary), len(samples), np.int64)
    np.minimum.at(first, prompt, np.arange(len(samples)))
    table = samples.table.select(["corpus", "split", "prompt_id", "prompt"]).take(pa.array(first))
    if table["prompt"].null_count:
        raise InputError("has prompts without text", source=samples.origin, field="prompt")
    return table, prompt


def unknown_features() -> list[float]:
    """Return the features of a name that reveals neither family nor size."""
    features = identify("").features()
    assert len(features) == FEATURES  # noqa: S101
    return features


def _parts(table: pa.Table, config: DataConfig) -> NDArray[np.int8]:
    """The part of each prompt: TRAIN, HELD_OUT, TEST, ELSEWHERE or ASIDE."""
    corpus, split = table["corpus"].to_pylist(), table["split"].to_pylist()
    place = _uniforms(table, config.split_seed)
    part = np.full(len(table), ASIDE, np.int8)
    for i, (name, which) in enumerate(zip(corpus, split, strict=True)):
        if name in config.corpora and which in config.splits:
            part[i] = HELD_OUT if place[i] < config.held_out else TRAIN
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


def _uniforms(table: pa.Table, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) per prompt by hash: it does not change when rows are added."""
    import xxhash

    keys = zip(table["corpus"].to_pylist(), table["prompt_id"].to_pylist(), strict=True)
    return np.array([xxhash.xxh3_64_intdigest(f"{a}\n{b}".encode(), seed) for a, b in keys]) / 2.0**64


def _by_llm(samples: LengthSamples, prompt: NDArray[Any], prompts: int) -> tuple[Any, Any, Any]:
    """Lengths (P, L, K), 0 where degenerate or missing, which are cut off, and log-t fits."""
    raw, clean, cut = samples.lengths_matrix(), samples.clean_mask(), samples.capped_matrix()
    llms = {name: number for number, name in enumerate(samples.llms)}
    llm = np.array([llms[name] for name in samples.table["llm"].to_pylist()])
    fits = fit_rows(logt_family(TIE_NU), raw, clean, cut)
    params = np.where(fits.degenerate[:, None], np.nan, fits.params[:, :2])
    lengths = np.zeros((prompts, len(llms), raw.shape[1]), np.int16)
    censored = np.zeros(lengths.shape, bool)
    fitted = np.full((prompts, len(llms), 2), np.nan, np.float16)
    lengths[prompt, llm] = np.where(clean, raw, 0)
    censored[prompt, llm] = cut & clean
    fitted[prompt, llm] = params
    return lengths, censored, fitted


def _padded(array: NDArray[Any], more: int, value: object) -> NDArray[Any]:
    """The array with `more` rows of one value after it."""
    return np.concatenate([array, np.full((more, *array.shape[1:]), value, array.dtype)])


def more_prompts(samples: LengthSamples, config: DataConfig, seed: int = 0) -> list[tuple[str, str | None]]:
    """Return two pieces of each training prompt with its corpus, and noise with none."""
    rng = np.random.default_rng(seed)
    pieces = [(piece(text, rng), corpus) for text, corpus in trained_texts(samples, config) for _ in range(2)]
    return [*pieces, *((text, None) for text in noise(rng))]


def piece(text: str, rng: np.random.Generator) -> str:
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


def noise(rng: np.random.Generator) -> list[str]:
    """Return texts of random characters of many scripts, short and long, and empty ones."""
    texts = ["", " ", "?", "a"]
    for low, high in _SCRIPTS.values():
        for _ in range(_NOISE_EACH):
            words = int(np.exp(rng.uniform(0, 6)))
            sizes = rng.integers(1, 9, words)
            texts.append(" ".join("".join(map(chr, rng.integers(low, high + 1, size))) for size in sizes))
    return texts
