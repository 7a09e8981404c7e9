"""The encoder predictor: a transformer reads the prompt, a head predicts the length.

ONNX Runtime and tokenizers, one to four threads, no torch. Each distinct prompt runs through the graph alone, with all
LLMs of its inputs: int8 scales depend on the batch, so that batching would change predictions, and on so few threads it
would save nothing. Training uses the same reading of prompts (`TextEncoder`) and of the head's outputs.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lengthwise.errors import InputError
from lengthwise.llm_names import UNKNOWN, identify, resolve_llm
from lengthwise.predictors.calibration import Calibration
from lengthwise.predictors.contract import Description, LogTPredictions, PredictionInput, as_inputs
from lengthwise.predictors.model_file import ModelFile
from lengthwise.predictors.prompt_words import words_and_pairs
from lengthwise.predictors.stated_length import StatedLength, stated, with_observations

Array = NDArray[Any]

MIN_LOG_SIGMA = -3.2
"""The smallest log sigma, about 4 %: ten samples per prompt support no narrower prediction."""


def log_sigma(raw: Array) -> Array:
    """Bound the spread from below, smoothly, as the loss does."""
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        return np.asarray(MIN_LOG_SIGMA + np.logaddexp(0.0, raw - MIN_LOG_SIGMA))


def mu_and_sigma(outputs: Array) -> tuple[Array, Array]:
    """Return mu and sigma of the network's outputs (..., 4): mu, raw log sigma, log mean, log std."""
    values = outputs.astype(np.float64)
    return values[..., 0], np.exp(log_sigma(values[..., 1]))


def log_size(tokens: Array) -> Array:
    """Return the prompt size as the network's input."""
    return np.asarray(np.log1p(tokens.astype(np.float32)) - np.float32(5.0))


_CHARACTERS_PER_TOKEN: Final = 16
_CHUNK: Final = 512
_STARTS: Final = ("[CLS]", "<s>")
_ENDS: Final = ("[SEP]", "</s>")


class TextEncoder:
    """A tokenizer that truncates a long prompt in the middle.

    The instruction of a prompt is usually at its beginning or its end.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.max_tokens = max_tokens
        self.start, self.end = self._one_of(_STARTS), self._one_of(_ENDS)
        self.pad_id = self._one_of(("[PAD]", "<pad>"))
        self.mask_id = self._one_of(("[MASK]", "<mask>"))

    @classmethod
    def of(cls, json: bytes, max_tokens: int) -> TextEncoder:
        """Build from the bytes of a tokenizer.json."""
        return cls(Tokenizer.from_str(json.decode("utf-8")), max_tokens)

    def encode(self, text: str) -> tuple[list[int], int]:
        """Return the token ids, with start and end, and their number before truncation."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[tuple[list[int], int]]:
        """Encode a batch. A very long text is first truncated by characters."""
        limit = self.max_tokens * _CHARACTERS_PER_TOKEN
        short = [t if len(t) <= 2 * limit else f"{t[:limit]} {t[-limit:]}" for t in map(_encodable, texts)]
        coded = self._tokenizer.encode_batch_fast(short, add_special_tokens=False)
        return [
            self._cut(code.ids, len(text) / max(len(brief), 1))
            for code, text, brief in zip(coded, texts, short, strict=True)
        ]

    def encode_all(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int32]]:
        """Return all ids concatenated, the offset of each text, and sizes before truncation."""
        pairs = [pair for at in range(0, len(texts), _CHUNK) for pair in self.encode_batch(texts[at : at + _CHUNK])]
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in pairs])])
        kind = np.uint16 if self._tokenizer.get_vocab_size() <= 1 << 16 else np.int32
        return (
            np.concatenate([np.array(ids, kind) for ids, _ in pairs]),
            offsets.astype(np.int64),
            np.array([size for _, size in pairs], np.int32),
        )

    def _cut(self, ids: list[int], stretch: float) -> tuple[list[int], int]:
        size = round(len(ids) * stretch)
        limit = self.max_tokens - 2
        if len(ids) > limit:
            head = (limit + 1) // 2
            ids = [*ids[:head], *ids[len(ids) - (limit - head) :]]
        return [self.start, *ids, self.end], size

    def _one_of(self, names: tuple[str, ...]) -> int:
        for name in names:
            number = self._tokenizer.token_to_id(name)
            if number is not None:
                return int(number)
        raise InputError(f"the tokenizer has none of {', '.join(names)}", hint="use an encoder of the BERT family")


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


KIND = "encoder"
EMBEDDING: Final = "embedding"
"""The second output of the graph: the pooled vector of each prompt. Earlier files do not have it."""
_NAMES = 4096  # cached LLM names
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class EncoderPredictor:
    """Predicts with an exported encoder. Build one with `load`."""

    session: Any
    text: TextEncoder
    llms: tuple[str, ...]
    calibration: Calibration
    card: Mapping[str, Any] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"EncoderPredictor({self.card.get('name', '')!r}, {len(self.llms)} LLMs)"

    @classmethod
    def load(cls, file: ModelFile, source: str | Path = "model file") -> EncoderPredictor:
        """Read the parts of a model file of kind "encoder"; InputError if one is invalid."""
        try:
            return cls._load(file, source)
        except InputError:
            raise
        except Exception as error:  # ONNX Runtime and tokenizers raise bare exceptions of their own
            raise InputError("a part is invalid", source=source, hint="get the file again") from error

    @classmethod
    def _load(cls, file: ModelFile, source: str | Path) -> EncoderPredictor:
        settings = json.loads(file.part("encoder.json"))
        if settings.get("head", "logt") != "logt":  # of a version that served classifiers and rankers too
            hint = "train it again: the network predicts a log-t"
            raise InputError(f"has a head of kind '{settings['head']}'", source=source, hint=hint)
        return cls(
            session=_session(file.part("model.onnx")),
            text=TextEncoder.of(file.part("tokenizer.json"), int(settings["max_tokens"])),
            llms=tuple(settings["llms"]),
            calibration=Calibration.from_json(json.loads(file.part("calibration.json"))),
            card=file.card,
        )

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        """Return one prediction for each input, in order; bare prompts need as many LLM names."""
        return self.describe(as_inputs(inputs, llms))[0]

    def describe(self, asked: Sequence[PredictionInput]) -> tuple[LogTPredictions, list[Description]]:
        """Return one prediction and one description for each input: its tokens and pairs, and its pooled vector."""
        rows = np.array([self.row(each.llm) for each in asked], np.int64)
        caps = np.array([each.cap for each in asked], np.int64)
        says = {text: stated(text) for text in {each.text for each in asked}}
        raw, descriptions = self._pairs([each.text for each in asked], says, rows, [each.llm for each in asked])
        mean, std = _statistics(raw)
        mu, sigma = mu_and_sigma(raw)
        predictions = LogTPredictions.of(mu, sigma, caps, sample_mean=mean, sample_std=std)
        names = [*self.llms, UNKNOWN]
        calibrated = self.calibration.apply(predictions, [names[row] for row in rows])
        return with_observations(calibrated, [says[each.text].observation for each in asked]), descriptions

    def row(self, llm: str) -> int:
        """Return the identity row of an LLM; an unknown one has the last row and is logged once."""
        if llm not in self._rows:
            if len(self._rows) >= _NAMES:  # names come from clients
                self._rows.clear()
            try:
                self._rows[llm] = self.llms.index(resolve_llm(llm, self.llms))
            except InputError:
                self._rows[llm] = len(self.llms)
                if llm != UNKNOWN:
                    _log.warning(
                        "LLM %.100r is not known to the predictor; the predictions of an unknown LLM are used", llm
                    )
        return self._rows[llm]

    def outputs_of_ids(self, ids: list[int], size: int, stated_length: Array) -> NDArray[np.float32]:
        """Return the raw outputs of a prompt for every known LLM and the unknown one: (LLMs + 1, outputs).

        `ids` are its token ids, `size` is its length before truncation, `stated_length` are the numbers of
        `StatedLength`.
        """
        names = [*self.llms, UNKNOWN]
        return self._run(ids, size, stated_length, np.arange(len(names)), names)[0]

    def _pairs(
        self, texts: list[str], says: Mapping[str, StatedLength], rows: NDArray[np.int64], llms: list[str]
    ) -> tuple[NDArray[np.float32], list[Description]]:
        """Return the raw outputs (pairs, outputs) and the description of each pair's prompt."""
        asked: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            asked.setdefault(text, []).append(number)
        raw = np.zeros((len(texts), self.session.get_outputs()[0].shape[1]), np.float32)
        described: dict[str, Description] = {}
        for text, numbers in asked.items():
            ids, size = self.text.encode(text)
            own = [llms[number] for number in numbers]
            raw[numbers], pooled = self._run(ids, size, says[text].numbers(), rows[numbers], own)
            described[text] = Description(words_and_pairs(np.array(ids, np.int32)), _of_unit_spread(pooled))
        return raw, [described[text] for text in texts]

    def _run(
        self, ids: list[int], size: int, stated_length: Array, rows: NDArray[np.int64], llms: Sequence[str]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the raw outputs of a prompt's pairs and its pooled vector, empty where the graph has none."""
        feed = {
            "ids": np.array([ids], np.int64),
            "log_size": log_size(np.array([size])),
            "stated": stated_length[None],
            "row": np.zeros(len(rows), np.int64),
            "llm": rows,
            "features": np.array([identify(llm).features() for llm in llms], np.float32),
        }
        raw, *pooled = self.session.run(None, {name: feed[name] for name in self._inputs})
        return raw, pooled[0][0] if pooled else np.empty(0, np.float32)

    @property
    def reads_stated_length(self) -> bool:
        """Whether the graph takes what a prompt says about its length."""
        return "stated" in self._inputs

    @cached_property
    def _inputs(self) -> list[str]:
        """The inputs of the graph: one without name features or stated lengths has no such input."""
        return [each.name for each in self.session.get_inputs()]


def _session(model: bytes) -> Any:  # ONNX Runtime has no types
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    # A thread for every four cores: the matrices are small, and the host needs the other cores.
    options.intra_op_num_threads, options.inter_op_num_threads = max(1, min(4, (os.cpu_count() or 1) // 4)), 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not _has_vnni():
        # Without VNNI the x86 kernels for u8 x s8 add pairs of products in 16 bits and saturate: mu moves by up to 0.2.
        # Those for u8 x u8 are exact; with VNNI they would take twice the time. On ARM the entry changes nothing.
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    # The fused add-and-normalise operator is slower than the two separate ones: 12 % of all time on x86 with VNNI,
    # 5 % with AVX2 only.
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
    )


CPU_INFO: Final = Path("/proc/cpuinfo")


def _has_vnni() -> bool:
    """Whether the CPU adds products of 8-bit integers in 32 bits; False where that is not known."""
    try:
        return "vnni" in CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        return False


def _of_unit_spread(pooled: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vector with a root mean square of 1."""
    norm = float(np.sqrt(pooled @ pooled))
    return pooled * np.float32(np.sqrt(len(pooled)) / norm) if norm > 0.0 else pooled


def _statistics(raw: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return sampling mean and std."""
    log_mean, log_std = raw[:, -2].astype(np.float64), raw[:, -1].astype(np.float64)
    return np.exp(np.clip(log_mean, 0.0, 12.0)), np.expm1(np.clip(log_std, 0.0, 12.0))
