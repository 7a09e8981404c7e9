"""Hidden states on their way from an engine's worker to its scheduler. Knows arrays, not vLLM.

The worker keeps, of each request in a step, the state of the last token that was computed and how many tokens that
request had by then. Both travel on the step's output, so that with async scheduling, where the scheduler is a step
ahead of what it is told, a state is still of the tokens that it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

ATTRIBUTE: Final = "lengthwise_states"
"""Of a step's output: its `StepStates`."""


@dataclass(frozen=True, eq=False)
class StepStates:
    """Of each request in one step: the tokens that it had, prompt and answer, and the state of the last, by layer."""

    requests: tuple[str, ...]
    tokens: tuple[int, ...]
    layers: Mapping[int, NDArray[np.float32]]

    def __iter__(self) -> Iterator[tuple[str, int, dict[int, NDArray[np.float32]]]]:
        for row, (name, tokens) in enumerate(zip(self.requests, self.tokens, strict=True)):
            yield name, tokens, {layer: states[row] for layer, states in self.layers.items()}


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
