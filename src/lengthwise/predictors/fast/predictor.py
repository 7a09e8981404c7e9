"""The fast tier: words looked up in tables, a small network in NumPy, nothing else."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors.contract import LogTBeliefs, PredictionInput, as_inputs
from lengthwise.predictors.fast.network import CLIP, SIGMA_AT_ZERO, STD_BELOW_MEAN, Network
from lengthwise.predictors.fast.tables import Packed, Tables, from_bytes, to_bytes
from lengthwise.predictors.fast.text import FEATURES, HEAD_CHARACTERS, TAIL_CHARACTERS, Page, Reader
from lengthwise.predictors.identity import identify
from lengthwise.workloads.llms import resolve_llm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lengthwise.predictors.file import ModelFile

    Floats = NDArray[np.float32]

KIND: Final = "fast"
_log = logging.getLogger(__name__)

MOST_WIDENING: Final = 2.5
"""Sigma of a prompt that is nothing like the training data, over what the network says."""

_USUAL_STRANGERS: Final = 0.10
_ALL_STRANGE: Final = 0.50
_USUAL_OUTLIERS: Final = 0.04
_ALL_OUTLYING: Final = 0.25

# Of the network's four outputs: which are relative to the LLM's usual log length, what is added, and the bounds.
_RELATIVE: Final = np.array([1.0, 0.0, 1.0, 1.0])
_AT_ZERO: Final = np.array([0.0, SIGMA_AT_ZERO, 0.0, -STD_BELOW_MEAN])
_LEAST: Final = np.array([0.0, -4.0, 0.0, 0.0])
_MOST: Final = np.array([12.0, 2.0, 12.0, 12.0])


@dataclass(frozen=True, eq=False)
class _Llm:
    shift: NDArray[np.float64]
    sigma_factor: float
    who: Floats


@dataclass(eq=False)
class FastPredictor:
    """Log-t beliefs from word tables and a small network.

    `levels` (usual log length) and `sigma_factors` (split conformal) have one entry per LLM of `llms` and a last
    one for unknown LLMs. Not locked: two threads that meet a new LLM name at once do the same work twice.
    """

    reader: Reader
    tables: Tables
    network: Network
    llms: tuple[str, ...]
    levels: NDArray[np.float64]
    sigma_factors: NDArray[np.float64]
    card: Mapping[str, Any] = field(default_factory=dict)
    _met: dict[str, _Llm] = field(default_factory=dict, repr=False)

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTBeliefs:
        """Return one belief for each input, or for each prompt and LLM name."""
        asked = as_inputs(inputs, llms)
        if not asked:
            empty = np.empty(0)
            return LogTBeliefs.of(empty, empty, empty, sample_mean=empty, sample_std=empty)
        distinct = {text: self._look(text) for text in dict.fromkeys(one.text for one in asked)}
        known = [self._met.get(one.llm) or self._meet(one.llm) for one in asked]
        x = np.array([distinct[one.text][0] for one in asked])
        who = np.array([llm.who for llm in known]).transpose(1, 0, 2)
        y = self.network.outputs(x, who) + np.array([llm.shift for llm in known])
        y = np.minimum(np.maximum(y, _LEAST), _MOST)
        natural = np.exp(y)
        factor = [llm.sigma_factor * distinct[one.text][1] for llm, one in zip(known, asked, strict=True)]
        return LogTBeliefs.of(
            y[:, 0],
            natural[:, 1] * factor,
            [one.cap for one in asked],
            sample_mean=natural[:, 2],
            sample_std=natural[:, 3],
        )

    def outputs(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the raw outputs for every known LLM and the unknown one: (texts, LLMs + 1, 4).

        They are log median, log sigma, log mean and log std of repeated answers, before calibration and widening.
        """
        names = [*self.llms, ""]
        features = np.array([identify(name).features() for name in names], np.float32)
        who = np.stack([self.network.who(row, own) for row, own in enumerate(features)], axis=1)
        shift = self.levels[:, None] * _RELATIVE + _AT_ZERO
        found = [self.network.outputs(np.repeat(self._look(text)[0][None], len(names), axis=0), who) for text in texts]
        return np.asarray(np.reshape(found, (-1, *shift.shape)) + shift, np.float32)

    def _look(self, text: str) -> tuple[Floats, float]:
        page = self.reader.read(text)
        x = self.network.standardise(self.tables.describe(page))
        return x, _widening(page, x, text)

    def _meet(self, name: str) -> _Llm:
        """Look an LLM's name up; an unknown one is logged once and gets the row trained for strangers."""
        try:
            row = self.llms.index(resolve_llm(name, self.llms))
        except InputError:
            row = len(self.llms)
            _log.warning("LLM '%s' is not known to this predictor: its beliefs are those of an unknown LLM", name)
        features = np.array(identify(name).features(), np.float32)
        shift = self.levels[row] * _RELATIVE + _AT_ZERO
        met = _Llm(shift, float(self.sigma_factors[row]), self.network.who(row, features))
        if len(self._met) < 10_000:  # names come from clients: memory stays bounded
            self._met[name] = met
        return met

    def parts(self) -> dict[str, bytes]:
        """Return the parts of a model file."""
        words = sorted(self.reader.rows, key=self.reader.rows.__getitem__)
        tables = self.tables
        packed: dict[str, NDArray[Any]] = {}
        for name, table in (("meaning", tables.meaning), ("topics", tables.topics)):
            packed |= {f"{name}_values": table.values, f"{name}_scales": table.scales}
        arrays = {
            **packed,
            "rarity": tables.rarity.astype(np.float16),
            "slope": tables.slope.astype(np.float16),
            "intercept": np.array(tables.intercept),
            "levels": self.levels,
            "sigma_factors": self.sigma_factors,
        }
        network = {name: value.astype(np.float16) for name, value in self.network.arrays().items()}
        exact = {"centre": self.network.centre, "spread": self.network.spread}
        return {
            "words.txt": b"\n".join(word for word in words if not word.startswith(b"\x01")),
            "llms.txt": "\n".join(self.llms).encode(),
            "tables.npz": to_bytes(arrays),
            "network.npz": to_bytes(network | exact),
        }


def load_fast(file: ModelFile, source: str | Path) -> FastPredictor:
    """Make a predictor of what `FastPredictor.parts` wrote."""
    table_part, network_part = (file.part(f"{name}.npz", source) for name in ("tables", "network"))
    try:
        arrays = from_bytes(table_part)
        network = Network.of(from_bytes(network_part))
        meaning, topics = (Packed(arrays[f"{name}_values"], arrays[f"{name}_scales"]) for name in ("meaning", "topics"))
        tables = Tables(
            meaning,
            topics,
            arrays["rarity"].astype(np.float32),
            arrays["slope"].astype(np.float32),
            float(arrays["intercept"].item()),
        )
        levels, factors = arrays["levels"], arrays["sigma_factors"]
    except (KeyError, ValueError, OSError) as error:
        raise InputError("a part is not what it should be", source=source, hint="get the file again") from error
    if len(network.centre) != tables.width:
        raise InputError("describes prompts in another way", source=source, hint="train it again with this version")
    reader = Reader.of(file.part("words.txt", source).split(b"\n"))
    llms = tuple(file.part("llms.txt", source).decode().split("\n"))
    return FastPredictor(reader, tables, network, llms, levels, factors, file.card)


def _widening(page: Page, x: Floats, text: str) -> float:
    """How many times wider than the network says: words it never saw, a page like none it saw, text not read.

    The cheap features alone tell an odd page; a share of inputs past the clip is usual up to a point.
    """
    outlying = np.count_nonzero(np.abs(x[:FEATURES]) > CLIP) / FEATURES
    read = (HEAD_CHARACTERS + TAIL_CHARACTERS) / max(len(text), 1)
    oddness = max(
        (page.strangeness - _USUAL_STRANGERS) / (_ALL_STRANGE - _USUAL_STRANGERS),
        (outlying - _USUAL_OUTLIERS) / (_ALL_OUTLYING - _USUAL_OUTLIERS),
        1.0 - 2.0 * read,
    )
    return 1.0 + (MOST_WIDENING - 1.0) * min(max(oddness, 0.0), 1.0)
