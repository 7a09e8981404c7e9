"""The fast predictor: word tables and a small network in NumPy, without a transformer.

A prompt is described by word and pair rows of a table, by counts of character classes, and by what it says about the
length of its answer (`stated_length`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import sqrt
from pathlib import Path
from typing import Any, Final, Self
from zipfile import BadZipFile
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from lengthwise.errors import InputError
from lengthwise.llm_names import UNKNOWN, identify, resolve_llm
from lengthwise.predictors.calibration import Calibration
from lengthwise.predictors.contract import Description, LogTPredictions, PredictionInput, as_inputs
from lengthwise.predictors.model_file import ModelFile, Weights, pack_arrays, unpack_arrays
from lengthwise.predictors.novelty import Novelty
from lengthwise.predictors.prompt_words import (
    HEAD_CHARACTERS,
    MARKS,
    SIGNS,
    TAIL_CHARACTERS,
    as_bytes,
    excerpt,
    split,
    words_and_pairs,
)
from lengthwise.predictors.stated_length import STATED, LogEstimate, stated_in, stated_share, with_observations

Words = NDArray[np.int32]
Floats = NDArray[np.float32]

EDGE: Final = 0
"""The row of the word before the first and after the last word of every prompt."""

NUMBERS: Final = 8
"""Rows for numbers outside the vocabulary, by number of digits."""

UNKNOWN_ROWS: Final = 256
"""Rows that other unknown words are hashed to."""

_UNIT_TOKENS: Final = {
    b"character": 0.25, b"letter": 0.25, b"word": 1.4, b"sentence": 25.0, b"paragraph": 110.0, b"page": 600.0,
}  # fmt: skip
_MAX_REQUESTS: Final = 8

RESERVED: Final = 1 + len(SIGNS) + NUMBERS + UNKNOWN_ROWS
"""Rows before the first word of the vocabulary."""

_FIRST_NUMBER: Final = 1 + len(SIGNS)
_FIRST_UNKNOWN: Final = _FIRST_NUMBER + NUMBERS


def _classes() -> tuple[bytes, int]:
    groups = [
        bytes(range(ord("a"), ord("z") + 1)), bytes(range(ord("A"), ord("Z") + 1)), b"0123456789", b" ", b"\n", b"\t\r",
        b"?", b"!", b".", b",", b":", b";", b"\"'", b"`", b"()", b"[]", b"{}", b"<>", b"=", b"+-", b"*", b"/", b"#",
        b"_", b"$\\^", b"@%&|~", bytes(range(128, 192)), bytes(range(192, 224)), bytes(range(224, 256)),
    ]  # fmt: skip
    classes = np.full(256, len(groups), np.uint8)  # bytes in no group are control bytes
    for number, group in enumerate(groups):
        classes[list(group)] = number
    return classes.tobytes(), len(groups) + 1


_CLASSES, CLASSES = _classes()
_DIGITS: Final = 2  # the number of their class
_COUNTS: Final = CLASSES + 5
COUNTED: Final = 2 * _COUNTS
"""Features that are counts and shares; the network standardises them, and novelty is judged by them."""
FEATURES: Final = COUNTED + STATED
_EARLIER: Final = {
    len(kept): kept for kept in (np.arange(COUNTED), np.delete(np.arange(COUNTED), [_COUNTS - 1, COUNTED - 1]))
}
"""Features of earlier files, by their number: without `stated_length`, and without any size that a prompt states."""


@dataclass(frozen=True, eq=False, slots=True)
class PromptText:
    """One prompt as read: rows of the word table in order, features, the share of unknown words."""

    words: NDArray[np.int32]
    features: NDArray[np.float32]
    unknown_share: float
    observation: LogEstimate | None = None
    """The length that the prompt states."""


@dataclass(frozen=True, eq=False)
class Reader:
    """Looks words up in a vocabulary."""

    rows: dict[bytes, int]
    units: NDArray[np.float32]
    """Tokens of the unit that a row names, such as "words"; 0 for other rows."""

    @classmethod
    def of(cls, vocabulary: Sequence[bytes]) -> Self:
        """Number the words of a vocabulary after the reserved rows."""
        rows = {word: RESERVED + number for number, word in enumerate(vocabulary)}
        units = np.zeros(RESERVED + len(vocabulary), np.float32)
        for unit, tokens in _UNIT_TOKENS.items():
            for word in (unit, unit + b"s"):
                if word in rows:
                    units[rows[word]] = tokens
        marks = {mark.strip(): 1 + number for number, mark in enumerate(MARKS.values())}
        return cls(rows | marks, units)

    @property
    def size(self) -> int:
        """Rows of the word table."""
        return RESERVED + len(self.rows) - len(SIGNS)

    def read(self, text: str) -> PromptText:
        """Read one prompt: any string."""
        part = excerpt(text)
        raw = as_bytes(part)
        found = split(raw)
        words = np.array([EDGE, *map(self.rows.get, found, repeat(-1)), EDGE], np.int32)
        unknown = 0
        for place in (words < 0).nonzero()[0].tolist():
            words[place] = row = _unknown(found[place - 1])
            unknown += row >= _FIRST_UNKNOWN
        units = self.units.take(words).nonzero()[0]
        requested = self._requested(found, words, units.tolist()) if len(units) else 0
        # A prompt without words counts as entirely unknown.
        unknown_share = unknown / len(found) if words.max() >= _FIRST_NUMBER else 1.0
        features = np.empty(FEATURES, np.float32)
        _count(features[:COUNTED], raw, len(text), len(found), raw.count(b"\n\n"), unknown, requested)
        says = stated_in(found, part, len(text))
        features[COUNTED:] = says.numbers()
        return PromptText(words, features, unknown_share, says.observation)

    def _requested(self, found: list[bytes], words: NDArray[np.int32], places: list[int]) -> int:
        """Return the largest size that a prompt states, as in "in 200 words", in tokens; 0 where it states none."""
        most = 0.0
        for place in places[:_MAX_REQUESTS]:
            before = found[max(0, place - 4) : place - 1]  # `words` begins with an edge, `found` does not
            numbers = [number for number, word in enumerate(before) if word.isdigit() and len(word) < 6]
            if numbers:
                last = numbers[-1]
                thousands = last and len(before[last]) == 3 and last - 1 in numbers and len(before[last - 1]) < 3
                count = int((before[last - 1] if thousands else b"") + before[last])
                most = max(most, count * float(self.units[words[place]]))
        return round(min(most, 20_000.0))


def _unknown(word: bytes) -> int:
    if word.isdigit():
        return _FIRST_NUMBER + min(len(word), NUMBERS) - 1
    return _FIRST_UNKNOWN + crc32(word) % UNKNOWN_ROWS


def _count(out: NDArray[np.float32], raw: bytes, *sizes: int) -> None:
    """Write of each class of bytes and of each size the log of its count, and its share of the bytes read."""
    counts = np.bincount(np.frombuffer(raw.translate(_CLASSES), np.uint8), minlength=_COUNTS)
    counts[CLASSES:] = sizes
    np.log1p(counts, out=out[:_COUNTS])
    np.multiply(counts, 1.0 / (len(raw) + 1.0), out=out[_COUNTS:])


PAIR_BITS: Final = 16
PAIRS: Final = 1 << PAIR_BITS
"""Rows that pairs of neighbouring words are hashed to."""


def terms(words: Words, size: int) -> Words:
    """Return the distinct words and pairs of a page in order, pairs after the `size` words."""
    return words_and_pairs(words, size, PAIR_BITS)


@dataclass(frozen=True, eq=False)
class WordTables:
    """Rows for words, and narrower ones for pairs, which have the first columns only.

    Bytes, also in memory: most of the time of a lookup is waiting for memory. They are steps of no fixed size, since
    the network standardises its inputs anyway. `rarity` weighs words and pairs (inverse document frequency, 0 for what
    training hardly saw).
    """

    words: NDArray[np.int8]
    pairs: NDArray[np.int8]
    rarity: Floats
    features: int = FEATURES

    @classmethod
    def of(cls, words: NDArray[np.floating], pairs: NDArray[np.floating], rarity: Floats) -> Self:
        """Round the rows to bytes; a column has the same step for words and pairs."""
        most = np.abs(words).max(axis=0)
        most[: pairs.shape[1]] = np.maximum(most[: pairs.shape[1]], np.abs(pairs).max(axis=0))
        step = np.where(most > 0.0, most, 1.0) / 127.0
        first, second = (
            np.ascontiguousarray(np.rint(rows / step[: rows.shape[1]]), np.int8) for rows in (words, pairs)
        )
        return cls(first, second, rarity)

    @property
    def width(self) -> int:
        """Numbers in a description."""
        return self.features + int(self.words.shape[1])

    def describe(self, page: PromptText, found: Words | None = None) -> Floats:
        """Describe a page: its features, then the sum of the rows of its terms, each once and weighed by rarity.

        `found` are its terms, where they are known.
        """
        out = np.empty(self.width, np.float32)
        out[: self.features] = (
            page.features if self.features == FEATURES else page.features.take(_EARLIER[self.features])
        )
        size, narrow = len(self.words), self.pairs.shape[1]
        found = terms(page.words, size) if found is None else found
        weight = self.rarity.take(found)
        weight *= 1.0 / (sqrt(weight @ weight) + 1e-6)
        edge = int(found.searchsorted(size))
        words, pairs = self.words.take(found[:edge], axis=0), self.pairs.take(found[edge:] - size, axis=0)
        np.dot(weight[:edge], words.astype(np.float32), out=out[self.features :])
        out[self.features : self.features + narrow] += weight[edge:] @ pairs.astype(np.float32)
        return out


CLIP: Final = 4.0
"""Standardised inputs are clipped here: no prompt drives the network beyond the training range."""

OUTPUTS: Final = 4

SIGMA_AT_ZERO: Final = -1.2
"""Log sigma where the network's output is 0, so that outputs start near usual values."""

STD_BELOW_MEAN: Final = 2.0
"""Log ratio of an LLM's usual length to the sampling std where the network's output is 0."""


@dataclass(frozen=True, eq=False)
class FastNetwork(Weights):
    """x = clip((description - centre) / spread); z = relu(x A + a); h = relu(z B + l); y = h C + z D + c.

    l = b + V (identity row of the LLM + features of its name K). The last identity row is for unknown LLMs.
    Outputs: log median, log sigma, log mean and log std of repeated answers, relative to the LLM's usual log length;
    after these, in a mean of several networks, the log median of each.
    """

    centre: Floats
    spread: Floats
    a: Floats
    a_bias: Floats
    b: Floats
    b_bias: Floats
    v: Floats
    identity: Floats
    k: Floats
    c: Floats
    d: Floats
    c_bias: Floats

    @classmethod
    def mean(cls, networks: Sequence[Self]) -> Self:
        """Return one network with the mean outputs of several, then the log median of each; they standardise alike."""
        first, share = networks[0], np.float32(1.0 / len(networks))
        side_by_side = {name: np.concatenate([getattr(one, name) for one in networks], axis=-1)
                  for name in ("a", "a_bias", "b_bias", "identity", "k")}  # fmt: skip
        blocks = {name: block_diag(*(getattr(one, name) for one in networks)) for name in ("b", "v")}
        stacked = {
            name: np.column_stack(
                [
                    np.concatenate([getattr(one, name) for one in networks]) * share,
                    block_diag(*(getattr(one, name)[:, :1] for one in networks)),
                ]
            )
            for name in ("c", "d")
        }
        bias = np.append(np.mean([one.c_bias for one in networks], axis=0), [one.c_bias[0] for one in networks])
        return cls.of(
            {"centre": first.centre, "spread": first.spread, **side_by_side, **blocks, **stacked, "c_bias": bias}
        )

    def llm_bias(self, row: int, name_features: Floats) -> Floats:
        """Return the LLM's contribution to the hidden layer; the same for all prompts."""
        return np.asarray((self.identity[row] + name_features @ self.k) @ self.v + self.b_bias, np.float32)

    def standardise(self, description: Floats) -> Floats:
        """Return the standardised description, clipped."""
        x: Floats = description - self.centre
        x /= self.spread
        np.maximum(x, -CLIP, out=x)
        np.minimum(x, CLIP, out=x)
        return x

    def prompt(self, x: Floats) -> tuple[Floats, Floats]:
        """Return a prompt's contribution to the hidden layer and to the outputs, for any LLM.

        One prompt at a time: for larger matrices BLAS starts threads, which costs more CPU time than it saves.
        """
        z: Floats = x @ self.a
        z += self.a_bias
        np.maximum(z, 0.0, out=z)
        direct: Floats = z @ self.d
        direct += self.c_bias
        hidden: Floats = z @ self.b
        return hidden, direct

    def outputs(self, hidden: Floats, direct: NDArray[Any]) -> NDArray[Any]:
        """Return (..., 4 or more) outputs from the parts of the hidden layer (overwritten) and of the outputs."""
        np.maximum(hidden, 0.0, out=hidden)
        return np.asarray(hidden @ self.c + direct)


KIND: Final = "fast"
WORDS: Final = ("words.txt", "tables.npz")
"""The parts of a model file that describe prompts; another file may share them (`model_file.SHARES`)."""
LEVELS: Final = "levels.npz"
"""The part that holds the levels and the widening of a file that shares its tables."""
NOVELTY: Final = "novelty.npz"
"""The part of a model file that holds `Novelty`; earlier files do not have it."""
_log = logging.getLogger(__name__)

MAX_WIDENING: Final = 2.5
"""Factor on sigma for a prompt that is unlike all training data."""

NOTHING_KNOWN: Final = 1.0
"""Least sigma of such a prompt: about that of all lengths of an LLM."""

MAX_SIGMA: Final = 1.5
"""Largest sigma: a central 90 % interval from a 24th to 24 times the median says that nothing is known."""

_USUAL_UNKNOWN: Final = 0.10
_ALL_UNKNOWN: Final = 0.50
_USUAL_OUTLIERS: Final = 0.04
_ALL_OUTLYING: Final = 0.25
_USUAL_DIGITS: Final = 0.4
_ALL_DIGITS: Final = 0.6

# Of the network's four outputs: which are relative to the LLM's usual log length, what is added, and the bounds.
_RELATIVE: Final = np.array([1.0, 0.0, 1.0, 1.0])
_AT_ZERO: Final = np.array([0.0, SIGMA_AT_ZERO, 0.0, -STD_BELOW_MEAN])
_MIN: Final = np.array([0.0, -4.0, 0.0, 0.0])
_MAX: Final = np.array([12.0, 2.0, 12.0, 12.0])


@dataclass(frozen=True, eq=False, slots=True)
class _Llm:
    shift: NDArray[np.float64]
    sigma_factor: float
    bias: Floats


@dataclass(frozen=True, eq=False, slots=True)
class _Prompt:
    """A prompt's contributions, for any LLM."""

    hidden: Floats
    direct: Floats
    oddity: float
    novelty: float
    description: Description
    observation: LogEstimate | None


@dataclass(eq=False)
class FastPredictor:
    """Log-t predictions from word tables and a small network.

    sigma = factor * sqrt(sigma of the network^2 + widening * variance of the networks' log medians)

    Each network was trained without some kinds of prompts: they disagree on kinds that none has seen. The factor is
    that of the LLM, times up to MAX_WIDENING by oddity: unknown words, unusual features, text not read. A length that
    the prompt states is a further observation (`stated_length.combined`).

    The level of answers to a kind of prompts that training has not seen is a further unknown, with a variance that is
    the one between kinds, times the prompt's novelty (`novelty`), times the squared weight of the network beside a
    stated length. It is apart (`LogTPredictions.level`): requests of one kind share it.

    `levels` (usual log length) has one entry per LLM of `llms` and a last one for unknown LLMs. Thread-safe without
    a lock: two threads that meet a new LLM name at once compute the same entry.
    """

    reader: Reader
    tables: WordTables
    network: FastNetwork
    llms: tuple[str, ...]
    levels: NDArray[np.float64]
    calibration: Calibration
    widening: float = 0.0
    card: Mapping[str, Any] = field(default_factory=dict)
    novelty: Novelty | None = None
    _llm_cache: dict[str, _Llm] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"FastPredictor({self.card.get('name', '')!r}, {len(self.llms)} LLMs)"

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        """Return one prediction for each input, or for each prompt and LLM name."""
        return self.describe(as_inputs(inputs, llms))[0]

    def describe(self, asked: Sequence[PredictionInput]) -> tuple[LogTPredictions, list[Description]]:
        """Return one prediction and one description for each input: its terms, and its features standardised."""
        if not asked:
            empty = np.empty(0)
            return LogTPredictions.of(empty, empty, empty, sample_mean=empty, sample_std=empty), []
        texts = [one.text for one in asked]
        read_once = {text: self._read(text) for text in dict.fromkeys(texts)}
        prompts = [read_once[text] for text in texts]
        known = [self._llm_cache.get(one.llm) or self._find_llm(one.llm) for one in asked]
        hidden = np.array([one.hidden for one in prompts]) + np.array([llm.bias for llm in known])
        direct = np.array([one.direct for one in prompts]) + np.array([llm.shift for llm in known])
        y = self.network.outputs(hidden, direct)
        disagreement = y[:, OUTPUTS:].var(axis=1) if y.shape[1] > OUTPUTS else 0.0
        y = y[:, :OUTPUTS]
        np.minimum(np.maximum(y, _MIN, out=y), _MAX, out=y)
        natural = np.exp(y)
        oddity, novelty = np.array([(one.oddity, one.novelty) for one in prompts]).T
        factor = np.array([llm.sigma_factor for llm in known]) * (1.0 + (MAX_WIDENING - 1.0) * oddity)
        sigma = factor * np.sqrt(natural[:, 1] ** 2 + self.widening * disagreement)
        cap = np.array([one.cap for one in asked], np.float64)
        # Everything is bounded: the checks of LogTPredictions.of, a tenth of the time, are not needed.
        sigma = np.minimum(np.maximum(sigma, NOTHING_KNOWN * oddity), MAX_SIGMA)
        nu, mean, std = self.calibration.nu, natural[:, 2], natural[:, 3]
        unlike = np.maximum(oddity, novelty)
        found = LogTPredictions(y[:, 0], sigma, cap, nu, sample_mean=mean, sample_std=std, novelty=unlike)
        predictions = with_observations(found, [one.observation for one in prompts])
        return self._with_level(predictions, sigma, prompts), [one.description for one in prompts]

    def _with_level(
        self, predictions: LogTPredictions, network: NDArray[np.float64], prompts: Sequence[_Prompt]
    ) -> LogTPredictions:
        """Return the predictions with the spread between kinds; `network` is sigma without stated lengths."""
        if self.novelty is None:
            return predictions
        weight = [
            one.novelty if one.observation is None else one.novelty * (1.0 - stated_share(sigma, one.observation)) ** 2
            for one, sigma in zip(prompts, network.tolist(), strict=True)
        ]
        variance = self.novelty.spread**2 * np.array(weight)
        level = np.sqrt(np.minimum(variance, np.maximum(MAX_SIGMA**2 - predictions.sigma**2, 0.0)))
        return replace(predictions, level=level)

    @property
    def reads_stated_length(self) -> bool:
        """Whether the network takes what a prompt says about its length."""
        return self.tables.features == FEATURES

    def _read(self, text: str) -> _Prompt:
        page = self.reader.read(text)
        found = terms(page.words, len(self.tables.words))
        x = self.network.standardise(self.tables.describe(page, found))
        hidden, direct = self.network.prompt(x)
        oddity = _oddity(page, x[: min(self.tables.features, COUNTED)], text)
        novelty = 0.0 if self.novelty is None else self.novelty.of(self.topics(x))
        description = Description(found, x[: self.tables.features])
        return _Prompt(hidden, direct, oddity, novelty, description, page.observation)

    def topics(self, x: Floats) -> Floats:
        """Return the topics in a standardised description, without the first guess, which is the last shared column."""
        first = self.tables.features
        return x[first : first + self.tables.pairs.shape[1] - 1]

    def _find_llm(self, name: str) -> _Llm:
        """Look up an LLM's name; an unknown one is logged once and gets the row trained for unknown LLMs."""
        adjustment = self.calibration.others
        try:
            llm = resolve_llm(name, self.llms)
            row, adjustment = self.llms.index(llm), self.calibration.by_llm.get(llm, adjustment)
        except InputError:
            row = len(self.llms)
            # The name is a client's: %r escapes control characters.
            if name != UNKNOWN:
                _log.warning(
                    "LLM %.100r is not known to this predictor; the predictions of an unknown LLM are used", name
                )
        features = np.array(identify(name).features(), np.float32)
        shift = np.zeros(len(self.network.c_bias))
        shift[:OUTPUTS] = self.levels[row] * _RELATIVE + _AT_ZERO
        shift[0] += adjustment.shift
        found = _Llm(shift, adjustment.factor, self.network.llm_bias(row, features))
        if len(self._llm_cache) < 10_000:  # names come from clients: memory stays bounded
            self._llm_cache[name] = found
        return found

    def parts(self) -> dict[str, bytes]:
        """Return the parts of a model file."""
        words = sorted(self.reader.rows, key=self.reader.rows.__getitem__)
        tables: dict[str, NDArray[Any]] = {
            "words": self.tables.words,
            "pairs": self.tables.pairs,
            "rarity": self.tables.rarity.astype(np.float16),
            "levels": self.levels,
            "widening": np.array([self.widening]),
        }
        network: dict[str, NDArray[Any]] = {
            name: value.astype(np.float16) for name, value in self.network.arrays().items()
        }
        exact: dict[str, NDArray[Any]] = {"centre": self.network.centre, "spread": self.network.spread}
        return {
            "words.txt": b"\n".join(word for word in words if not word.startswith(b"\x01")),
            "llms.txt": "\n".join(self.llms).encode(),
            "calibration.json": json.dumps(self.calibration.to_json()).encode(),
            "tables.npz": pack_arrays(tables),
            "network.npz": pack_arrays({**network, **exact}),
            **({} if self.novelty is None else {NOVELTY: pack_arrays(self.novelty.arrays())}),
        }


def parts_without_words(predictor: FastPredictor) -> dict[str, bytes]:
    """Return the parts of a model file that shares WORDS with another."""
    own = {name: part for name, part in predictor.parts().items() if name not in WORDS}
    return {**own, LEVELS: pack_arrays({"levels": predictor.levels, "widening": np.array([predictor.widening])})}


def load_fast(file: ModelFile, source: str | Path) -> FastPredictor:
    """Load what `FastPredictor.parts` wrote."""
    table_part, network_part = (file.part(f"{name}.npz", source) for name in ("tables", "network"))
    try:
        arrays = unpack_arrays(table_part) | (unpack_arrays(file.parts[LEVELS]) if LEVELS in file.parts else {})
        network = FastNetwork.of(unpack_arrays(network_part))
        tables = WordTables(arrays["words"], arrays["pairs"], arrays["rarity"].astype(np.float32))
        features = len(network.centre) - (tables.width - FEATURES)
        if features in _EARLIER:
            tables = replace(tables, features=features)
        levels, widening = arrays["levels"], float(arrays.get("widening", [0.0])[0])
        calibration = Calibration.from_json(json.loads(file.part("calibration.json", source)))
        llms = tuple(file.part("llms.txt", source).decode().split("\n"))
        novelty = Novelty.of_arrays(unpack_arrays(file.parts[NOVELTY])) if NOVELTY in file.parts else None
    except (IndexError, KeyError, TypeError, ValueError, EOFError, OSError, BadZipFile) as error:
        raise InputError("a part is invalid", source=source, hint="get the file again") from error
    if len(network.centre) != tables.width or len(tables.pairs) != PAIRS:
        raise InputError(
            "was trained with another prompt description", source=source, hint="train it again with this version"
        )
    if novelty is not None and novelty.centres.shape[1] != tables.pairs.shape[1] - 1:
        raise InputError("has a novelty of another prompt description", source=source, hint="get the file again")
    if len(levels) != len(llms) + 1:
        raise InputError("has levels of other LLMs", source=source, hint="get the file again")
    reader = Reader.of(file.part("words.txt", source).split(b"\n"))
    return FastPredictor(reader, tables, network, llms, levels, calibration, widening, file.card, novelty)


def _oddity(page: PromptText, features: Floats, text: str) -> float:
    """Return how unusual a prompt is as a text, from 0 to 1.

    The largest of: unknown words, unusual features, digits (a prompt of token ids), text not read.

    Only the counted features are checked; a small share of clipped inputs is usual.
    """
    outlying = np.count_nonzero(np.abs(features) >= CLIP) / len(features)
    read = (HEAD_CHARACTERS + TAIL_CHARACTERS) / max(len(text), 1)
    oddity = max(
        (page.unknown_share - _USUAL_UNKNOWN) / (_ALL_UNKNOWN - _USUAL_UNKNOWN),
        (outlying - _USUAL_OUTLIERS) / (_ALL_OUTLYING - _USUAL_OUTLIERS),
        (float(page.features[_COUNTS + _DIGITS]) - _USUAL_DIGITS) / (_ALL_DIGITS - _USUAL_DIGITS),
        1.0 - 2.0 * read,
    )
    return min(max(oddity, 0.0), 1.0)
