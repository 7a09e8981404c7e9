"""`load_predictor`: a predictor by its packaged name or from a file. No network, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final, Protocol, overload

from lengthwise.errors import InputError
from lengthwise.predictors.contract import PredictionInput, Predictions
from lengthwise.predictors.model_file import SUFFIX, ModelFile, read_model_file


class LoadedPredictor(Protocol):
    """A LengthPredictor that also takes bare prompts with as many LLM names."""

    @property
    def llms(self) -> tuple[str, ...]:
        """The LLMs it knows."""

    @overload
    def predict(self, inputs: Sequence[PredictionInput], llms: None = None) -> Predictions: ...

    @overload
    def predict(self, inputs: Sequence[str], llms: Sequence[str]) -> Predictions: ...

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> Predictions:
        """Return one prediction for each input, in order."""


def _fast(file: ModelFile, path: Path) -> LoadedPredictor:
    from lengthwise.predictors.fast import load_fast

    return load_fast(file, path)


def _encoder(file: ModelFile, path: Path) -> LoadedPredictor:
    from lengthwise.predictors.encoder.predictor import EncoderPredictor

    del path
    return EncoderPredictor.load(file)


def _with_adapted(base: LoadedPredictor, file: ModelFile, path: Path) -> LoadedPredictor:
    from lengthwise.predictors.adapt import AdaptedPredictor, from_part

    return AdaptedPredictor(base, from_part(file.part(ADAPTED), base.llms, path), file.card)


MODELS: Final = Path(str(resources.files("lengthwise.predictors"))) / "models"
"""The model files that ship: predictors by their names, and the probe of the embedded LLM, which is none."""

ADAPTED: Final = "adapted.json"
"""The part of a model file with the LLMs that `lengthwise adapt` added, whatever the kind."""

LOADERS: Final[Mapping[str, Callable[[ModelFile, Path], LoadedPredictor]]] = {"encoder": _encoder, "fast": _fast}
"""By the kind a model file names. A loader imports what it needs only when it is called."""


def load_predictor(name: str | Path) -> LoadedPredictor:
    """Load a packaged predictor by name, or one from a model file.

    A string that ends in .lw or has a folder in it is a file; anything else is a name.
    """
    path = model_path(name)
    file = read_model_file(path)
    loader = LOADERS.get(file.kind)
    if loader is None:
        known = ", ".join(sorted(LOADERS))
        raise InputError(f"holds a predictor of kind '{file.kind}'", source=path, field="kind", hint=f"known: {known}")
    loaded = loader(file, path)
    return _with_adapted(loaded, file, path) if ADAPTED in file.parts else loaded


def packaged_predictors() -> dict[str, Path]:
    """Return the predictors that ship with the package, by name."""
    return {path.stem: path for path in sorted(MODELS.glob(f"*{SUFFIX}")) if path.stem != "probe"}


def best_packaged() -> str:
    """Return `default` where it is packaged, else `fast`."""
    return "default" if "default" in packaged_predictors() else "fast"


def model_path(name: str | Path) -> Path:
    """Where a packaged predictor's file, or the file that is named, lies."""
    if isinstance(name, Path) or name.endswith(SUFFIX) or len(Path(name).parts) > 1:
        return Path(name)
    packaged = packaged_predictors()
    if name not in packaged:
        raise InputError(
            f"predictor '{name}' is not known", hint=f"one of: {', '.join(packaged) or 'none'}; or a model file"
        )
    return packaged[name]
