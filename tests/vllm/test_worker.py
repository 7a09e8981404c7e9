"""What the worker does between vLLM's two calls of a step, on stand-ins for vLLM's two model runners.

The real runners are tested on a real LLM in `test_vllm_states`, the second of them only where Triton is installed; the
stand-ins have the fields that `test_vllm_contract` finds in vLLM's source.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput

from lengthwise.errors import InputError
from lengthwise.vllm.refine import Wanted, attached
from lengthwise.vllm.worker import PendingStates, StatesWorker

WIDTH, DEPTH = 4, 6
RUNNERS = ("first", "second")


class Llm:
    """Has the hidden state `layer * 1000 + row` in every row, and logits that are flat in row 0 only."""

    layers: tuple[int, ...] = ()

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.layers = layers

    def states(self, rows: int) -> list[torch.Tensor]:
        every = torch.arange(rows, dtype=torch.bfloat16)[:, None].expand(rows, WIDTH)
        return [1000 * layer + every for layer in self.layers]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[:, :1] * torch.tensor([[0.0, 1.0]])


class AsyncOutput(AsyncModelRunnerOutput):  # type: ignore[misc]  # vLLM is not typed
    def __init__(self, output: Any) -> None:
        self.output = output

    def get_output(self) -> Any:
        return self.output

    def get_kv_connector_output(self) -> str:
        """Abstract in vLLM 0.33."""
        return "transfers"


class Runner:
    """Leaves the state of a step as vLLM's runners do; the order of its rows is not the scheduler's."""

    def __init__(self, kind: str) -> None:
        self.kind, self.model = kind, Llm()
        self.execute_model_state: Any = None
        self.input_batch: Any = None

    def get_model(self) -> Llm:
        return self.model

    def execute(self, step: Any) -> None:
        batch = SimpleNamespace(req_ids=sorted(step.num_scheduled_tokens, reverse=True))
        counts = [step.num_scheduled_tokens[name] for name in batch.req_ids]
        padded = sum(counts) + 3
        hidden = torch.arange(padded, dtype=torch.float32)[:, None].expand(padded, WIDTH)
        found = {"aux_hidden_states": self.model.states(padded), "hidden_states": hidden}
        if self.kind == "first":
            self.input_batch = batch
            found["logits"] = self.model.compute_logits(hidden[np.cumsum(counts) - 1])
        else:
            found["input_batch"] = batch
        self.execute_model_state = SimpleNamespace(**found)


@pytest.fixture(params=RUNNERS)
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = object.__new__(StatesWorker)
    made.device = torch.device("cpu")
    made.model_runner = Runner(request.param)
    made.model_config = SimpleNamespace(get_total_num_hidden_layers=lambda: DEPTH)
    made.vllm_config = SimpleNamespace(additional_config={"lengthwise": {"layers": [5, 2]}})
    base = StatesWorker.__mro__[1]
    monkeypatch.setattr(base, "load_model", lambda self: None)
    monkeypatch.setattr(base, "execute_model", lambda self, step: self.model_runner.execute(step))
    monkeypatch.setattr(base, "sample_tokens", sampled)
    return made


def sampled(worker: Any, grammar: Any) -> Any:
    runner = worker.model_runner
    runner.execute_model_state.aux_hidden_states[0][:] = -1  # the next step may overwrite what this one computed
    runner.execute_model_state = None
    output = SimpleNamespace()
    return output if runner.kind == "first" else AsyncOutput(output)


def step(new: dict[str, tuple[int, int]], cached: dict[str, int], scheduled: dict[str, int], ended: Any = ()) -> Any:
    """A step of `new` requests (prompt, computed) and `cached` ones (computed)."""
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prompt_len=prompt, num_computed_tokens=computed)
            for name, (prompt, computed) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(cached), num_computed_tokens=list(cached.values())),
        num_scheduled_tokens=scheduled,
        finished_req_ids=set(ended),
    )


def states_of(worker: StatesWorker, of: Any) -> dict[str, Any]:
    worker.execute_model(of)
    output = worker.sample_tokens(None)
    if isinstance(output, AsyncModelRunnerOutput):
        output = output.get_output()
    return {
        name: (state.tokens, {n: s.tolist() for n, s in state.layers.items()}) for name, state in attached(output) or ()
    }


def rows(layers: tuple[int, ...], row: int) -> dict[int, list[float]]:
    return {
        layer: torch.tensor([1000 * layer + row], dtype=torch.bfloat16).float().tolist() * WIDTH for layer in layers
    }


def test_every_request_gets_the_row_of_its_own_last_token(worker: StatesWorker) -> None:
    worker.load_model()
    found = states_of(worker, step({"a": (3, 0), "b": (5, 0)}, {}, {"a": 3, "b": 5}))
    # Rows: b has 0 to 4, a 5 to 7.
    assert found == {"b": (5, rows((2, 5), 4)), "a": (3, rows((2, 5), 7))}
    found = states_of(worker, step({"c": (2, 0)}, {"a": 3, "b": 5}, {"a": 1, "b": 1, "c": 2}))
    assert found == {"c": (2, rows((2, 5), 1)), "b": (6, rows((2, 5), 2)), "a": (4, rows((2, 5), 3))}


def test_a_partial_prompt_has_no_state_and_an_answer_has_one_every_interval(worker: StatesWorker) -> None:
    worker.load_model()
    worker._wanted = Wanted((2, 5), every=2)
    assert states_of(worker, step({"a": (8, 0)}, {}, {"a": 4})) == {}
    tokens = [states_of(worker, step({}, {"a": 4}, {"a": 4}))["a"][0]]
    for computed in range(8, 14):
        tokens += [state[0] for state in states_of(worker, step({}, {"a": computed}, {"a": 1})).values()]
    assert tokens == [8, 10, 12, 14]


def test_a_request_that_is_resumed_or_reuses_a_name_is_counted_from_its_prompt(
    worker: StatesWorker,
) -> None:
    worker.load_model()
    states_of(worker, step({"a": (3, 0)}, {}, {"a": 3}))
    assert states_of(worker, step({"a": (3, 0)}, {}, {"a": 6})).keys() == {"a"}, (
        "three tokens of its answer are recomputed"
    )
    again = step({"a": (9, 0)}, {}, {"a": 6}, ended={"a"})
    assert states_of(worker, again) == {}, "another request of that name, whose prompt is partly computed"
    assert worker._prompt_tokens == {"a": 9}


def test_each_state_has_the_entropy_of_the_token_that_is_sampled_from_it(worker: StatesWorker) -> None:
    worker.load_model()
    worker._wanted = Wanted((2, 5), entropy=True)
    worker.execute_model(step({"a": (1, 0), "b": (1, 0)}, {}, {"a": 1, "b": 1}))
    output = worker.sample_tokens(None)
    found = attached(output.get_output() if isinstance(output, AsyncModelRunnerOutput) else output)
    assert found is not None
    entropy = {name: state.entropy for name, state in found}
    assert entropy["b"] == pytest.approx(np.log(2)), "its row is the first, where the logits are equal"
    assert entropy["a"] == pytest.approx(0.582, abs=1e-3)


def test_an_asynchronous_output_keeps_what_else_it_can(worker: StatesWorker) -> None:
    worker.load_model()
    worker.execute_model(step({"a": (1, 0)}, {}, {"a": 1}))
    output = worker.sample_tokens(None)
    if worker.model_runner.kind == "second":
        assert isinstance(output, AsyncOutput)
        assert output.get_kv_connector_output() == "transfers"
        output = output.get_output()
    assert attached(output) is not None


def test_the_layers_are_in_the_configuration_that_vllm_compiles_for(worker: StatesWorker) -> None:
    worker.load_model()
    assert worker.vllm_config.additional_config["lengthwise_layers"] == [2, 5]
    assert worker.model_runner.model.layers == (2, 5)
    assert worker.model_runner.use_aux_hidden_state_outputs


def test_without_layers_the_worker_behaves_as_vllms(worker: StatesWorker) -> None:
    worker.vllm_config.additional_config = {}
    worker.load_model()
    assert not hasattr(worker.model_runner, "use_aux_hidden_state_outputs")
    worker.execute_model(step({"a": (1, 0)}, {}, {"a": 1}))
    worker.model_runner.execute_model_state.aux_hidden_states = None
    assert worker._states() is None


@pytest.mark.parametrize("layer", [0, DEPTH + 1])
def test_a_layer_that_the_llm_does_not_have_is_refused(worker: StatesWorker, layer: int) -> None:
    worker.vllm_config.additional_config = {"lengthwise": {"layers": [layer]}}
    with pytest.raises(InputError, match=f"has {DEPTH} layers, not {layer}"):
        worker.load_model()


def test_an_llm_that_returns_no_states_is_named(worker: StatesWorker) -> None:
    worker.model_runner.model = SimpleNamespace()
    with pytest.raises(InputError, match="SimpleNamespace does not return hidden states"):
        worker.load_model()


class Stream:
    """Stands in for a CUDA stream, and records the order of calls."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.order: list[str] = []

    def wait_stream(self, other: Any) -> None:
        self.order.append("wait")

    def __enter__(self) -> None:
        self.order.append("enter")

    def __exit__(self, *_: object) -> None:
        self.order.append("leave")


def test_a_copy_waits_for_the_step_and_is_awaited_only_when_the_output_is_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Stream()

    class Event:
        def __init__(self, blocking: bool) -> None:
            assert blocking, "a busy wait would take a core"

        def record(self, where: Stream) -> None:
            where.order.append("record")

        def synchronize(self) -> None:
            stream.order.append("synchronize")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "main")
    monkeypatch.setattr(torch.cuda, "stream", lambda given: given)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    pending = PendingStates(["a"], [7], {2: torch.ones(1, WIDTH)}, torch.ones(1), stream)
    assert stream.order == ["wait", "enter", "record", "leave"]
    assert [(name, state.tokens, state.entropy) for name, state in pending.result()] == [("a", 7, 1.0)]
    assert stream.order[-1] == "synchronize"
