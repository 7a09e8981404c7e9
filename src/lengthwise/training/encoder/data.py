"""From length samples and a tokenizer to a pack."""

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


def load_samples(config: DataConfig) -> LengthSamples:
    """Every row of the data that is named, all splits: `make_pack` says which are trained on."""
    if config.source == ALPACA:
        samples = load_alpaca_lengths()
    elif config.source is not None and Path(config.source).is_file():
        samples = LengthSamples.read(config.source)
    else:
        samples = load_castillo(config.source)
    if config.smollm2:
        samples = _with_smollm2(samples, config.source)
    gone = {resolve_llm(name, samples.llms) for name in config.without}
    return samples.where(llm=[llm for llm in samples.llms if llm not in gone]) if gone else samples


def _with_smollm2(samples: LengthSamples, source: str | None) -> LengthSamples:
    home = data_home() if source is None else Path(source).parent
    path = None if home is None else home / "smollm2" / "lengths.parquet"
    if path is None or not path.is_file():
        raise InputError(
            "SmolLM2's lengths are not there", source=path, field="data.smollm2", hint="set data.smollm2: false"
        )
    rows = read_parquet_table(path)
    keys = pc.binary_join_element_wise(rows["dataset"].cast(pa.string()), rows["prompt_id"].cast(pa.string()), "\n")
    theirs = pc.binary_join_element_wise(samples.table["corpus"], samples.table["prompt_id"], "\n")
    where = pc.index_in(keys, value_set=theirs.combine_chunks())
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
    """Tokenise each prompt once and lay its lengths out by LLM; held-out prompts are drawn from the trained ones."""
    table, prompt = prompt_table(samples)
    corpora = tuple(samples.corpora)
    corpus = np.array([corpora.index(name) for name in table["corpus"].to_pylist()], np.int8)
    texts = [*table["prompt"].to_pylist(), *(text for text, _ in unlabelled)]
    theirs = [-1 if name is None else corpora.index(name) for _, name in unlabelled]
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
        corpus=np.concatenate([corpus, np.array(theirs, np.int8)]),
        part=_padded(_parts(table, config), spare, UNLABELLED),
        fold=np.random.default_rng(config.split_seed).integers(0, _FOLDS, len(texts)).astype(np.int8),
        features=np.array([*(identify(llm).features() for llm in samples.llms), unknown_features()], np.float32),
        llms=samples.llms,
        corpora=corpora,
        pad_id=encoder.pad_id,
        mask_id=encoder.mask_id,
    )


def trained_texts(samples: LengthSamples, config: DataConfig) -> list[tuple[str, str]]:
    """The texts that are trained on, with their corpora: nothing held out, nothing of a test split."""
    table, _ = prompt_table(samples)
    pairs = list(zip(table["prompt"].to_pylist(), table["corpus"].to_pylist(), strict=True))
    return [pairs[i] for i in np.flatnonzero(_parts(table, config) == TRAIN)]


def prompt_table(samples: LengthSamples) -> tuple[pa.Table, NDArray[Any]]:
    """One row per prompt, and the number of its prompt for each row of the samples."""
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
    """What a name says that says nothing."""
    features = identify("").features()
    assert len(features) == FEATURES  # noqa: S101
    return features


def _parts(table: pa.Table, config: DataConfig) -> NDArray[np.int8]:
    """Where each prompt belongs."""
    corpus, split = table["corpus"].to_pylist(), table["split"].to_pylist()
    place = _uniforms(table, config.split_seed)
    part = np.full(len(table), ASIDE, np.int8)
    for i, (where, which) in enumerate(zip(corpus, split, strict=True)):
        if where in config.corpora and which in config.splits:
            part[i] = HELD_OUT if place[i] < config.held_out else TRAIN
        elif which == "test":
            part[i] = TEST if where in config.corpora else ELSEWHERE
    if config.limit is not None:
        chosen = np.flatnonzero(part <= HELD_OUT)
        ranked = chosen[np.argsort(place[chosen], kind="stable")]
        # Evenly over all, so that held-out prompts, which come first, keep their share.
        kept = ranked[np.linspace(0, len(ranked) - 1, min(len(ranked), config.limit)).astype(np.int64)]
        part[np.setdiff1d(chosen, kept)] = ASIDE
    if not (part == TRAIN).any() or not (part == HELD_OUT).any():
        raise InputError("no prompt to train on, or none to hold out", field="data", hint="check corpora and splits")
    return part


def _uniforms(table: pa.Table, seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) per prompt by hash: it does not move when rows are added."""
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
