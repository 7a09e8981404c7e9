from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from lengthwise.engines.states import StepStates, attach, attached, generated_by


@dataclass
class Output:
    """As vLLM's ModelRunnerOutput: a plain dataclass."""

    req_ids: list[str]


class Later:
    """As vLLM's asynchronous output: it turns into the plain one later."""

    def __init__(self, output: Output) -> None:
        self._model_runner_output = output

    def get_output(self) -> Any:
        return self._model_runner_output


STATES = StepStates(("a", "b"), (7, 30), {20: np.arange(8, dtype=np.float32).reshape(2, 4)})


def test_states_ride_on_an_output_and_through_a_pipe() -> None:
    output = Output(["a", "b"])
    assert attached(output) is None
    attach(output, STATES)
    found = attached(pickle.loads(pickle.dumps(output)))  # noqa: S301  (our own)
    assert found is not None
    rows = {name: (tokens, layers[20].tolist()) for name, tokens, layers in found}
    assert rows == {"a": (7, [0.0, 1.0, 2.0, 3.0]), "b": (30, [4.0, 5.0, 6.0, 7.0])}


def test_states_ride_on_an_output_that_is_still_to_come() -> None:
    later = Later(Output(["a", "b"]))
    attach(later, STATES)
    assert attached(later.get_output()) is STATES


def test_a_prompt_half_computed_has_no_state_of_the_answer() -> None:
    assert generated_by(9, 10) is None
    assert generated_by(10, 10) == 0
    assert generated_by(13, 10) == 3
