"""The encoder predictor: ONNX Runtime and tokenizers, one thread, no torch.

Each distinct prompt runs through the graph alone, with all LLMs of its inputs: int8 scales depend on the batch, so that
batching would change predictions, and on one thread it would save nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import Calibration
from lengthwise.predictors.contract import HistogramPredictions, LogTPredictions, PredictionInput, as_inputs
from lengthwise.predictors.encoder.readout import log_size, mu_and_sigma, probabilities
from lengthwise.predictors.encoder.text import TextEncoder
from lengthwise.predictors.llm_names import identify, resolve_llm
from lengthwise.predictors.model_file import ModelFile

KIND = "encoder"
UNKNOWN = ""
"""The name of the unknown LLM's row."""
_NAMES = 4096  # cached LLM names
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class EncoderPredictor:
    """Predicts with an exported encoder. Build one with `load`."""

    session: Any
    text: TextEncoder
    llms: tuple[str, ...]
    head: str
    calibration: Calibration
    edges: NDArray[np.float64] | None = None
    knots: NDArray[np.float64] | None = None
    """From a rank head's scores to log lengths."""
    name: str = ""
    _rows: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"EncoderPredictor({self.name!r}, {len(self.llms)} LLMs)"

    @classmethod
    def load(cls, file: ModelFile, source: str | Path = "model file") -> EncoderPredictor:
        """Read the parts of a model file of kind "encoder"; InputError if one is invalid."""
        try:
            return cls._load(file)
        except InputError:
            raise
        except Exception as error:  # ONNX Runtime and tokenizers raise bare exceptions of their own
            raise InputError("a part is invalid", source=source, hint="get the file again") from error

    @classmethod
    def _load(cls, file: ModelFile) -> EncoderPredictor:
        settings = json.loads(file.part("encoder.json"))
        edges, knots = settings.get("edges"), settings.get("knots")
        return cls(
            session=_session(file.part("model.onnx")),
            text=TextEncoder.of(file.part("tokenizer.json"), int(settings["max_tokens"])),
            llms=tuple(settings["llms"]),
            head=str(settings["head"]),
            calibration=Calibration.from_json(json.loads(file.part("calibration.json"))),
            edges=None if edges is None else np.array(edges, np.float64),
            knots=None if knots is None else np.array(knots, np.float64),
            name=str(file.card.get("name", "")),
        )

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions | HistogramPredictions:
        """Return one prediction for each input, in order; bare prompts need as many LLM names."""
        asked = as_inputs(inputs, llms)
        rows = np.array([self.row(each.llm) for each in asked], np.int64)
        caps = np.array([each.cap for each in asked], np.int64)
        raw = self._pairs([each.text for each in asked], rows, [each.llm for each in asked])
        if self.edges is not None:
            return HistogramPredictions.of(self.edges, probabilities(raw), caps)
        mean, std = _statistics(raw, self.head)
        mu, sigma = mu_and_sigma(raw, self.head, self.knots)
        predictions = LogTPredictions.of(mu, sigma, caps, sample_mean=mean, sample_std=std)
        names = [*self.llms, UNKNOWN]
        return self.calibration.apply(predictions, [names[row] for row in rows])

    def row(self, llm: str) -> int:
        """Return the identity row of an LLM; an unknown one has the last row and is logged once."""
        if llm not in self._rows:
            if len(self._rows) >= _NAMES:  # names come from clients
                self._rows.clear()
            try:
                self._rows[llm] = self.llms.index(resolve_llm(llm, self.llms))
            except InputError:
                self._rows[llm] = len(self.llms)
                _log.warning("LLM '%s' is not known to the predictor; the predictions of an unknown LLM are used", llm)
        return self._rows[llm]

    def outputs(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the raw outputs for every known LLM and the unknown one: (texts, LLMs + 1, outputs)."""
        return np.stack([self.outputs_of_ids(*self.text.encode(text)) for text in texts])

    def outputs_of_ids(self, ids: list[int], size: int) -> NDArray[np.float32]:
        """Return the same for one prompt given as token ids; `size` is its length before truncation."""
        names = [*self.llms, UNKNOWN]
        return self._run(ids, size, np.arange(len(names)), names)

    def _pairs(self, texts: list[str], rows: NDArray[np.int64], llms: list[str]) -> NDArray[np.float32]:
        asked: dict[str, list[int]] = {}
        for number, text in enumerate(texts):
            asked.setdefault(text, []).append(number)
        width = len(self.edges) - 1 if self.edges is not None else self.session.get_outputs()[0].shape[1]
        raw = np.zeros((len(texts), width), np.float32)
        for text, numbers in asked.items():
            raw[numbers] = self._run(*self.text.encode(text), rows[numbers], [llms[number] for number in numbers])
        return raw

    def _run(self, ids: list[int], size: int, rows: NDArray[np.int64], llms: Sequence[str]) -> NDArray[np.float32]:
        feed = {
            "ids": np.array([ids], np.int64),
            "log_size": log_size(np.array([size])),
            "row": np.zeros(len(rows), np.int64),
            "llm": rows,
            "features": np.array([identify(llm).features() for llm in llms], np.float32),
        }
        raw: NDArray[np.float32] = self.session.run(None, {name: feed[name] for name in self._inputs})[0]
        return raw

    @cached_property
    def _inputs(self) -> list[str]:
        """The inputs of the graph: one without name features has no such input."""
        return [each.name for each in self.session.get_inputs()]


def _session(model: bytes) -> Any:  # noqa: ANN401  (ONNX Runtime has no types)
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The fused add-and-normalise operator is slower than the two separate ones: 12 % of all time on x86 with VNNI,
    # 5 % with AVX2 only.
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
    )


def _statistics(raw: NDArray[np.float32], head: str) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return sampling mean and std, if the head predicts them."""
    if head == "rank":
        return None, None
    log_mean, log_std = raw[:, -2].astype(np.float64), raw[:, -1].astype(np.float64)
    return np.exp(np.clip(log_mean, 0.0, 12.0)), np.expm1(np.clip(log_std, 0.0, 12.0))
