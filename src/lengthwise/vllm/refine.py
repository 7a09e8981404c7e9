"""Predictions of running requests, refined from the LLM's hidden states (TRAIL). Imports nothing of vLLM.

The worker copies, for each request in a step, the hidden state of the last computed token and the number of tokens it
covers. Both travel on the step's output, so that with async scheduling, where the scheduler is a step ahead, a state
belongs to the tokens it names. A `Refiner` reads the states with a probe. A failure never stops a step: a
request whose state the probe cannot read keeps its prediction and is not read again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import After, LengthDistribution, LogT, Point, wide_prior
from lengthwise.predictors.probe import ENTROPY, Probe, Reading, load_probe

ATTRIBUTE: Final = "lengthwise_states"
"""The attribute of a step's output that holds its `StepStates`."""
WORKER: Final = "lengthwise.vllm.worker.StatesWorker"
"""The worker that sets it."""


@dataclass(frozen=True)
class Wanted:
    """The states that the worker copies: after these layers, every `every` tokens of the answer."""

    layers: tuple[int, ...]
    """In ascending order."""
    every: int = 1
    entropy: bool = False
    """Also the entropy of the next token."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Wanted:
        """Read the options: `layers` and `entropy` of every token, or what `probe` reads, when it reads it."""
        layers, name, entropy = set(options.get("layers", ())), options.get("probe"), bool(options.get("entropy"))
        if name is None:
            return cls(tuple(sorted(layers)), entropy=entropy)
        probe = load_probe(name)
        every = 1 if layers else probe.every
        return cls(tuple(sorted({*layers, probe.layer})), every, entropy or ENTROPY in probe.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The state of one request: its tokens so far, prompt and answer, and the hidden state of the last, by layer."""

    tokens: int
    layers: Mapping[int, NDArray[np.float32]]
    entropy: float | None = None
    """Entropy of the next token, nats, before penalties and temperature; None unless asked for."""


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


def attach(output: Any, states: StepStates) -> None:  # vLLM's ModelRunnerOutput
    """Attach the states to a step's output."""
    setattr(output, ATTRIBUTE, states)


def attached(output: Any) -> StepStates | None:
    """Return the states on a step's output."""
    found: StepStates | None = getattr(output, ATTRIBUTE, None)
    return found


def generated_by(tokens: int, prompt_tokens: int) -> int | None:
    """Return the tokens of the answer that a state covers; None during prefill."""
    return tokens - prompt_tokens if tokens >= prompt_tokens else None


_SIGMA_OF_A_HINT: Final = 0.5
"""Sigma given to a probe for a hint, about that of a predictor, which probes are trained on."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refinements:
    """Counts of a refiner."""

    requests: int
    """Requests read at least once."""
    readings: int
    failed: int
    """Requests no longer read because the probe raised; they keep their prediction."""
    cpu_s: float
    """CPU time of reading."""


@dataclass(frozen=True, slots=True, eq=False)
class Due:
    """A state to read."""

    key: str
    """The request; once in a step."""
    generated: int
    """Tokens of the answer that the state covers."""
    state: State
    prediction: LengthDistribution | None
    """From the prompt; used at the request's first state only."""
    cap: int
    """The most tokens the answer may have; likewise."""


@dataclass(slots=True)
class _Followed:
    prediction: LengthDistribution | None
    reading: Reading | None = None  # None: no longer read


class Refiner:
    """Follows the requests of one engine with a probe, from their first state to their end."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._open: dict[str, _Followed] = {}
        self._requests = self._readings = self._failed = 0
        self._cpu_s = 0.0

    @property
    def counts(self) -> Refinements:
        """Counts so far."""
        return Refinements(self._requests, self._readings, self._failed, self._cpu_s)

    def due(self, key: str, generated: int) -> bool:
        """Whether the state after `generated` tokens is to be read; never one before the last reading."""
        followed = self._open.get(key)
        if followed is None:
            return True
        return followed.reading is not None and followed.reading.due(generated)

    def read(self, due: Sequence[Due]) -> dict[str, LengthDistribution]:
        """Read the states of a step; return the new predictions of the whole answers, none where the probe fails."""
        began = time.thread_time()
        try:
            return self._read(due)
        except Exception:  # no error may stop a step
            return {name: found for each in due for name, found in self._read_alone(each).items()}
        finally:
            self._cpu_s += time.thread_time() - began

    def _read_alone(self, due: Due) -> dict[str, LengthDistribution]:
        try:
            return self._read([due])
        except Exception as error:
            self._open.setdefault(due.key, _Followed(due.prediction)).reading = None
            self._failed += 1
            if self._failed == 1:
                _log.warning("the probe cannot read request %s, which keeps its prediction: %r", due.key, error)
            return {}

    def _read(self, due: Sequence[Due]) -> dict[str, LengthDistribution]:
        """Read states at once; if it raises, nothing has changed."""
        readings, entropy = [], []
        for each in due:
            followed = self._open.get(each.key)
            known = None if followed is None else followed.reading
            readings.append(known or self._probe.follow(probe_prior(each.prediction, each.cap), each.cap))
            if each.state.entropy is None and ENTROPY in self._probe.inputs:
                raise InputError("the engine does not report the entropy of the next token")
            entropy.append(each.state.entropy or 0.0)
        states = np.array([each.state.layers[self._probe.layer] for each in due])
        rest = self._probe.read(readings, states, [each.generated for each in due], entropy)
        for each, reading in zip(due, readings, strict=True):
            followed = self._open.setdefault(each.key, _Followed(each.prediction))
            self._requests += followed.reading is None
            followed.reading = reading
        self._readings += len(due)
        return {each.key: After(left, each.generated) for each, left in zip(due, rest, strict=True)}

    def update_prediction(self, key: str, prediction: LengthDistribution) -> bool:
        """Update the prediction from the prompt; False for a request without readings."""
        followed = self._open.get(key)
        if followed is None:
            return False
        followed.prediction = prediction
        if followed.reading is None:
            return False
        followed.reading.set_prompt_prediction(probe_prior(prediction, prediction.cap))
        return True

    def ended(self, key: str, current: LengthDistribution | None) -> LengthDistribution | None:
        """Remove a request; return its prediction from the prompt, `current` if it was never read."""
        followed = self._open.pop(key, None)
        return current if followed is None else followed.prediction


def probe_prior(prediction: LengthDistribution | None, cap: int) -> LengthDistribution:
    """Return a prediction as a probe takes it; without one, the wide prior."""
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
        problem = f"the probe reads {probe.network.width} numbers a state, and the LLM's have {hidden_size}"
        raise InputError(problem, field="probe", hint=hint)
    if layers is not None and not 1 <= probe.layer <= layers:
        raise InputError(f"the probe reads layer {probe.layer}, and the LLM has {layers}", field="probe", hint=hint)


def check_reported(probe: Probe, wanted: Wanted) -> None:
    """Refuse a probe that reads states which the worker does not report."""
    every_reading = probe.every % wanted.every == 0
    if probe.layer not in wanted.layers or not every_reading or (ENTROPY in probe.inputs and not wanted.entropy):
        problem = f"the worker does not report what the probe reads: layer {probe.layer} every {probe.every} tokens"
        hint = f'start the engine with this probe, or with the option "layers": [{probe.layer}]'
        raise InputError(problem, field="probe", hint=hint)


def _bare(llm: str) -> str:
    """Return a name without its owner or folder."""
    return llm.rstrip("/").rsplit("/", 1)[-1].lower()


def refiner_for(options: Mapping[str, Any], config: Any, predictor: str) -> Refiner | None:
    """Return the refiner of the probe that the plug-in's options name; None without one.

    InputError if this vLLM provides no hidden states, or the probe is for another LLM, whose numbers would be
    plausible and wrong.
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
        raise InputError("vLLM's worker provides no hidden states", field="probe", hint=hint)
    against = {
        "speculative decoding, whose last token may be rejected": config.speculative_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "forced lengths, which the hidden states do not reflect": options.get("forced_lengths") is not None,
    }
    for feature, used in against.items():
        if used:
            raise InputError(f"a probe cannot be used with {feature}", field="probe", hint="leave out one of them")
    trained_with = probe.card.get("predictor")
    if trained_with and trained_with != Path(predictor).stem:
        _log.warning("the probe was trained with predictor '%s', and the engine uses '%s'", trained_with, predictor)
    _log.info("predictions are refined every %d tokens by the probe '%s', layer %d", probe.every, name, probe.layer)
    return Refiner(probe)
