"""Predictions of running requests, made anew from the LLM's own hidden states (TRAIL). Knows arrays and predictions, not vLLM.

Whatever happens in here, a host's step goes on: a request of which the probe cannot read a state keeps the prediction that
it has, and is not read again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lengthwise.engines.states import State
from lengthwise.errors import InputError
from lengthwise.lengths import After, LengthDistribution, LogT, Point, wide_prior
from lengthwise.predictors.probe import Probe, Reading
from lengthwise.predictors.probe.features import ENTROPY

_SIGMA_OF_A_HINT: Final = 0.5
"""The spread with which a bare number of tokens is told to a probe, about that of a predictor's predictions: probes have
only seen such, and who sends a number has mostly guessed it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refinements:
    """What has happened so far."""

    requests: int
    """Read at least once."""
    readings: int
    failed: int
    """Requests given up because the probe raised; they keep the prediction that they had."""
    cpu_s: float
    """Of the thread that reads, in reading."""


@dataclass(slots=True)
class _Followed:
    prediction: LengthDistribution | None
    reading: Reading | None = None  # None: given up


class Refiner:
    """The requests of one host that a probe follows, from their first state to their end."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._open: dict[str, _Followed] = {}
        self._requests = self._readings = self._failed = 0
        self._cpu_s = 0.0

    @property
    def counts(self) -> Refinements:
        """What has happened so far."""
        return Refinements(self._requests, self._readings, self._failed, self._cpu_s)

    def due(self, key: str, generated: int) -> bool:
        """Whether the state after so many tokens of the answer is to be read; of who is computed again, only later."""
        followed = self._open.get(key)
        if followed is None:
            return True
        return followed.reading is not None and followed.reading.due(generated)

    def read(
        self, key: str, generated: int, state: State, prediction: LengthDistribution | None, cap: int
    ) -> LengthDistribution | None:
        """Read a state; return what is predicted of the whole answer now, or None where it cannot be said.

        `prediction` is the prompt's, `cap` the most tokens the answer may have; both count at the first state only.
        """
        began = time.thread_time()
        followed = self._open.get(key) or self._open.setdefault(key, _Followed(prediction))
        try:
            reading = followed.reading or self._probe.follow(told(followed.prediction, cap), cap)
            first, followed.reading = followed.reading is None, reading
            if state.entropy is None and ENTROPY in self._probe.inputs:
                raise InputError("the engine does not tell the entropy of the next token")
            rest = reading.read(state.layers[self._probe.layer], generated, state.entropy or 0.0)
        except Exception as error:  # a step must not end because of it, whatever it is
            followed.reading = None
            self._failed += 1
            if self._failed == 1:
                _log.warning("the probe cannot read request %s, which keeps its prediction: %r", key, error)
            return None
        finally:
            self._cpu_s += time.thread_time() - began
        self._requests += first
        self._readings += 1
        return After(rest, generated)

    def hear(self, key: str, prediction: LengthDistribution) -> bool:
        """Take in what the prompt made one predict; False for a request that is not read, or not yet."""
        followed = self._open.get(key)
        if followed is None:
            return False
        followed.prediction = prediction
        if followed.reading is None:
            return False
        followed.reading.hear(told(prediction, prediction.cap))
        return True

    def ended(self, key: str, held: LengthDistribution | None) -> LengthDistribution | None:
        """Forget a request; return what its prompt made one predict, `held` where no state of it came."""
        followed = self._open.pop(key, None)
        return held if followed is None else followed.prediction


def told(prediction: LengthDistribution | None, cap: int) -> LengthDistribution:
    """What a probe is told of a prompt's prediction: without one, the wide prior."""
    if prediction is None:
        return wide_prior(max(1, cap))
    if isinstance(prediction, Point):
        return LogT(math.log(max(1.0, prediction.mean())), _SIGMA_OF_A_HINT, prediction.cap)
    return prediction


def check_fit(probe: Probe, llms: Iterable[str], *, hidden_size: int | None, layers: int | None) -> None:
    """Refuse a probe of another LLM: by name, and by its states' size and depth where these are known."""
    names = [llm for llm in llms if llm]
    hint = "train one for it: lengthwise probe collect, then probe train (docs/studies/trail.md)"
    if _bare(probe.llm) not in {_bare(name) for name in names}:
        served = names[-1] if names else "an LLM without a name"
        raise InputError(f"the probe is for {probe.llm}, and the engine serves {served}", field="probe", hint=hint)
    if hidden_size is not None and hidden_size != probe.network.width:
        said = f"the probe reads {probe.network.width} numbers a state, and the LLM's have {hidden_size}"
        raise InputError(said, field="probe", hint=hint)
    if layers is not None and not 1 <= probe.layer <= layers:
        raise InputError(f"the probe reads layer {probe.layer}, and the LLM has {layers}", field="probe", hint=hint)


def _bare(llm: str) -> str:
    """A name without its owner or folder."""
    return llm.rstrip("/").rsplit("/", 1)[-1].lower()
