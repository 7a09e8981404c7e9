"""A new version of the model file for a running gateway: it is verified, started and tried before it takes over."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors.contract import PredictionInput, as_logt
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.resolve import predictor_label
from lengthwise.predictors.service import QUICK
from lengthwise.predictors.subprocess_predictor import SubprocessError, SubprocessPredictor

if TYPE_CHECKING:
    from lengthwise.predictors.service import PredictionService

_log = logging.getLogger(__name__)

_TRIALS: Final = tuple(PredictionInput(text, "llama-3.1-8B", 512) for text in ("", "Why is the sky blue?"))

Version = tuple[int, int, int]


class PredictorWatch:
    """Uses a model file whenever it changes. A file that cannot be used changes nothing; the log and /health say so."""

    def __init__(self, path: Path, predictions: PredictionService, *, in_use: bool) -> None:
        """`in_use`: whether the file as it is now is the predictor in use."""
        self._path = path
        self._predictions = predictions
        self._seen = _version(path) if in_use else None
        self._error: str | None = None
        self._since: float | None = None

    @property
    def state(self) -> dict[str, Any]:
        """What /health tells: the file, when it was last taken into use (None: at the start), and why not since."""
        return {"file": str(self._path), "since": self._since, "error": self._error}

    async def run(self, every_s: float) -> None:
        """Look for a new version again and again."""
        while True:
            await self.check()
            await asyncio.sleep(every_s)

    async def check(self) -> None:
        """Use the file if it has changed."""
        version = _version(self._path)
        if version is None or version == self._seen:
            return
        self._seen = version
        try:
            process, label = await asyncio.to_thread(_started, self._path)
        except (InputError, SubprocessError, OSError) as error:
            self._error = str(error)
            _log.error("the predictor stays %s; its new version is not used: %s", self._predictions.predictor, error)
            return
        if _version(self._path) != version:  # replaced meanwhile: the next check takes the newer one
            await asyncio.to_thread(process.close)
            return
        self._predictions.use(process, label)
        self._error, self._since = None, round(time.time(), 3)
        _log.warning("the predictor is %s from now on", label)


def _version(path: Path) -> Version | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _started(path: Path) -> tuple[SubprocessPredictor, str]:
    """Start a process that has loaded the file and predicted with it."""
    read_model_file(path)
    label = predictor_label(path)
    process = SubprocessPredictor(str(path), QUICK)
    try:
        process.start()
        tried = as_logt(process.predict(_TRIALS))
        if not (np.isfinite(tried.mu).all() and (tried.sigma > 0).all()):
            raise InputError("predicts no lengths", source=path)
    except BaseException:
        process.close()
        raise
    return process, label
