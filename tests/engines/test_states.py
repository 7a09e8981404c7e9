from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.engines.refine import StepStates, Wanted, attach, attached, generated_by
from lengthwise.predictors.probe import write_probe
from tests.predictors.test_probe import made_probe


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
    rows = {name: (state.tokens, state.layers[20].tolist(), state.entropy) for name, state in found}
    assert rows == {"a": (7, [0.0, 1.0, 2.0, 3.0], None), "b": (30, [4.0, 5.0, 6.0, 7.0], None)}


def test_each_state_has_the_entropy_of_its_own_row() -> None:
    states = StepStates(STATES.requests, STATES.tokens, STATES.layers, (0.5, 2.5))
    assert {name: state.entropy for name, state in states} == {"a": 0.5, "b": 2.5}


def test_states_ride_on_an_output_that_is_still_to_come() -> None:
    later = Later(Output(["a", "b"]))
    attach(later, STATES)
    assert attached(later.get_output()) is STATES


def test_the_worker_keeps_what_the_probe_reads_and_when_it_does(tmp_path: Path) -> None:
    told, entropic = tmp_path / "told.lw", tmp_path / "entropic.lw"
    write_probe(told, made_probe())
    write_probe(entropic, made_probe(("prompt", "entropy"), told=6))
    assert Wanted.of({}) == Wanted(())
    assert Wanted.of({"layers": [4, 9], "entropy": True}) == Wanted((4, 9), entropy=True)
    assert Wanted.of({"probe": str(told)}) == Wanted((3,), every=16)
    assert Wanted.of({"probe": str(entropic)}) == Wanted((3,), every=16, entropy=True)
    assert Wanted.of({"probe": str(told), "layers": [9]}) == Wanted((3, 9)), "layers are of every token"


def test_a_prompt_half_computed_has_no_state_of_the_answer() -> None:
    assert generated_by(9, 10) is None
    assert generated_by(10, 10) == 0
    assert generated_by(13, 10) == 3
