"""Hidden states on their way from an engine's worker to its scheduler. Knows arrays, not vLLM.

The worker keeps, of each request in a step, the state of the last token that was computed and how many tokens that
request had by then. Both travel on the step's output, so that with async scheduling, where the scheduler is a step
ahead of what it is told, a state is still of the tokens that it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.predictors.probe import load_probe
from lengthwise.predictors.probe.features import ENTROPY

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
