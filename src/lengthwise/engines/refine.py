"""Predictions of running requests, refined from the LLM's hidden states (TRAIL). Imports nothing of vLLM.

The worker copies, for each request in a step, the hidden state of the last computed token and the number of tokens it
covers. Both travel on the step's output, so that with async scheduling, where the scheduler is a step ahead, a state still
belongs to the tokens it names. A `Refiner` reads the states with a probe. A failure never stops a step: a request whose
state the probe cannot read keeps its prediction and is not read again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import After, LengthDistribution, LogT, Point, wide_prior
from lengthwise.predictors.probe import Probe, Reading, load_probe
from lengthwise.predictors.probe.bins import ENTROPY

ATTRIBUTE: Final = "lengthwise_states"
"""Of a step's output: its `StepStates`."""
WORKER: Final = "lengthwise.engines.vllm_worker.StatesWorker"
"""The worker that puts them there."""


@dataclass(frozen=True)
class Wanted:
    """Which states the worker keeps: after these layers, of every so many tokens of the answer."""

    layers: tuple[int, ...]
    every: int = 1
    entropy: bool = False
    """Of the next token too."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Wanted:
        """What the options ask for: `layers` and `entropy` of every token, or what `probe` reads, when it does."""
        layers, name, entropy = tuple(options.get("layers", ())), options.get("probe"), bool(options.get("entropy"))
        if name is None:
            return cls(layers, entropy=entropy)
        probe = load_probe(name)
        every = 1 if layers else probe.every
        return cls(tuple(sorted({*layers, probe.layer})), every, entropy or ENTROPY in probe.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Of one request: the tokens that it had, prompt and answer, and the state of the last, by layer."""

    tokens: int
    layers: Mapping[int, NDArray[np.float32]]
    entropy: float | None = None
    """Of the next token, nats, before any penalty or temperature; None where it was not asked for."""


@dataclass(frozen=True, eq=False)
class StepStates:
    """The states of one step, a row for each request."""

    requests: tuple[str, ...]
    tokens: tuple[int, ...]
    layers: Mapping[int, NDArray[np.float32]]
    entropy: tuple[float, ...] | None = None

    def __iter__(self) -> Iterator[tuple[str, State]]:
        for row, (name, tokens) in enumerate(zip(self.requests, self.tokens, strict=True)):
            entropy = None if self.entropy is None else self.entropy[row]
            yield name, State(tokens, {layer: states[row] for layer, states in self.layers.items()}, entropy)


def attach(output: Any, states: StepStates) -> None:  # noqa: ANN401  (one of vLLM's kinds of output)
    """Put the states on a step's output; on that of an asynchronous one, on what it will turn into."""
    setattr(getattr(output, "_model_runner_output", output), ATTRIBUTE, states)


def attached(output: Any) -> StepStates | None:  # noqa: ANN401
    """Return the states on a step's output."""
    found: StepStates | None = getattr(output, ATTRIBUTE, None)
    return found


def generated_by(tokens: int, prompt_tokens: int) -> int | None:
    """Tokens of the answer that a state has seen; None while the prompt is still being computed."""
    return tokens - prompt_tokens if tokens >= prompt_tokens else None


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


_log = logging.getLogger(__name__)


def refiner_for(options: Mapping[str, Any], config: Any, predictor: str) -> Refiner | None:  # noqa: ANN401
    """The reader of the probe that the plug-in's options name; None where they name none.

    InputError where this vLLM would not hand over states, or not the probe's: nothing is more easily predicted than a
    number from a probe of another LLM.
    """
    name = options.get("probe")
    if name is None:
        return None
    model, parallel = config.model_config, config.parallel_config
    probe = load_probe(name)
    check_fit(
        probe,
        [str(model.model), str(model.served_model_name)],
        hidden_size=int(model.get_hidden_size()),
        layers=int(model.get_total_num_hidden_layers()),
    )
    if str(parallel.worker_cls).startswith(("auto", "vllm.")):
        hint = f"add --worker-cls {WORKER}"
        raise InputError("vLLM's own worker hands over no hidden states", field="probe", hint=hint)
    if not model.enforce_eager:
        raise InputError("compiled layers cannot be looked into", field="probe", hint="add --enforce-eager")
    against = {
        "speculative decoding, whose last token may be taken back": config.speculative_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "lengths that are forced (`forced_lengths`), of which the LLM knows nothing": options.get("forced_lengths")
        is not None,
    }
    for what, there in against.items():
        if there:
            raise InputError(f"a probe is not read with {what}", field="probe", hint="leave out one of them")
    beside = probe.card.get("predictor")
    if beside and beside != Path(predictor).stem:
        _log.warning("the probe learned with '%s' as the predictor, and is told what '%s' predicts", beside, predictor)
    _log.info("predictions are refined every %d tokens by the probe '%s', layer %d", probe.every, name, probe.layer)
    return Refiner(probe)
