"""A worker of vLLM that passes hidden states of chosen layers to the scheduler with each step's output.

    --worker-cls lengthwise.vllm.worker.StatesWorker
    --additional-config '{"lengthwise": {"probe": "default"}}'      or {"layers": [20]}

It extends the worker of the platform, CPU or GPU. The states are vLLM's auxiliary hidden states, which EAGLE-3 drafts
from: the LLM's forward pass returns them beside its own output, compiled or eager, with or without CUDA graphs. Of
these, the rows that are due are selected on the device and copied to the host while the next step runs; the copy is
awaited where the step's tokens are.

What it relies on is stated in `vllm.contract`: a step is execute_model, which leaves `execute_model_state` with
`aux_hidden_states` (in the order of the layers, a row for each token), and then sample_tokens; the rows are in the
order of `input_batch.req_ids`, those of a request adjacent. `input_batch` belongs to the state in vLLM's second model
runner (the default on a GPU) and to the runner in the first (CPU). Where a release differs, no states are reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import AsyncModelRunnerOutput

from lengthwise.errors import InputError
from lengthwise.vllm.refine import StepStates, Wanted, attach

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker

_log = logging.getLogger(__name__)


class StatesWorker(PlatformWorker):
    """vLLM's worker, which also reports the hidden states of each request's last token."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:  # passed on to vLLM as they are
        """Load the LLM and make its forward pass return the states."""
        options = self.vllm_config.additional_config or {}
        self._wanted = Wanted.of(options.get("lengthwise", {}))
        self._prompt_tokens: dict[str, int] = {}
        self._step: Any = None
        self._reports = True
        self._copies: Any = None
        # Part of the key of vLLM's compile cache: what is compiled returns the states of these layers.
        self.vllm_config.additional_config = {**options, "lengthwise_layers": list(self._wanted.layers)}
        loaded = super().load_model(*args, **kwargs)
        if self._wanted.layers:
            self._return_states()
        return loaded

    def _return_states(self) -> None:
        model, depth = self.model_runner.get_model(), self.model_config.get_total_num_hidden_layers()
        for layer in self._wanted.layers:
            if not 1 <= layer <= depth:
                hint = f"give numbers from 1 to {depth}"
                raise InputError(f"the LLM has {depth} layers, not {layer}", field="layers", hint=hint)
        if not hasattr(model, "set_aux_hidden_state_layers"):
            problem = f"vLLM's {type(model).__name__} does not return hidden states of its layers"
            raise InputError(problem, field="layers", hint="leave out the probe; vLLM's EAGLE-3 names the LLMs that do")
        model.set_aux_hidden_state_layers(self._wanted.layers)
        self.model_runner.use_aux_hidden_state_outputs = True
        if self.device.type != "cpu":
            self._copies = torch.cuda.Stream(self.device)

    def execute_model(self, scheduler_output: Any) -> Any:
        """Compute a step."""
        self._step = scheduler_output
        for name in scheduler_output.finished_req_ids:
            self._prompt_tokens.pop(name, None)
        self._prompt_tokens |= {new.req_id: new.prompt_len for new in scheduler_output.scheduled_new_reqs}
        return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample the step's tokens; the output carries the states."""
        pending = self._pending()  # first: sampling changes logits and removes the step's state
        output = super().sample_tokens(grammar_output)
        if pending is None:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return with_states(output, pending)
        attach(output, pending.result())
        return output

    def _pending(self) -> PendingStates | None:
        """Return the states to report; none any more once this release of vLLM has been found to differ."""
        if not self._reports:
            return None
        try:
            with torch.inference_mode():
                return self._states()
        except (AttributeError, TypeError, KeyError) as error:
            self._reports = False
            _log.error("this vLLM keeps hidden states elsewhere, so predictions are not refined: %r", error)
            return None

    def _states(self) -> PendingStates | None:
        """Return the states to report: at the end of a prompt and after every `every` tokens of an answer."""
        state = self.model_runner.execute_model_state
        if state is None or state.aux_hidden_states is None:
            return None
        batch = state.input_batch if hasattr(state, "input_batch") else self.model_runner.input_batch
        names = batch.req_ids
        tokens, last = self._rows(names)
        generated = tokens - np.array([self._prompt_tokens[name] for name in names])
        due = np.flatnonzero((generated >= 0) & (generated % self._wanted.every == 0))
        if not len(due):
            return None
        rows = async_tensor_h2d(last[due], self.device)
        layers = dict(zip(self._wanted.layers, (each[rows] for each in state.aux_hidden_states), strict=True))
        entropy = None
        if self._wanted.entropy:
            if hasattr(state, "logits"):
                logits = state.logits[async_tensor_h2d(due, self.device)]
            else:  # the second runner computes them later, where it samples
                logits = self.model_runner.model.compute_logits(state.hidden_states[rows])
            entropy = _entropy(logits)
        return PendingStates([names[row] for row in due], tokens[due].tolist(), layers, entropy, self._copies)

    def _rows(self, names: Sequence[str]) -> tuple[Any, Any]:
        """Return the tokens of the requests after this step, and the row of the last token of each."""
        step = self._step
        before = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        before |= zip(step.scheduled_cached_reqs.req_ids, step.scheduled_cached_reqs.num_computed_tokens, strict=True)
        scheduled = np.array([step.num_scheduled_tokens[name] for name in names], np.int64)
        return np.array([before[name] for name in names]) + scheduled, np.cumsum(scheduled) - 1


class PendingStates:
    """The states of one step on their way to the host; `copies` is the stream that copies them, None on a CPU."""

    def __init__(
        self,
        requests: Sequence[str],
        tokens: Sequence[int],
        layers: Mapping[int, torch.Tensor],
        entropy: torch.Tensor | None,
        copies: torch.cuda.Stream | None,
    ) -> None:
        self._requests, self._tokens = tuple(requests), tuple(tokens)
        self._device = (layers, entropy)  # kept until the copy has ended, which the allocator does not see
        self._copied: torch.cuda.Event | None = None
        if copies is None:
            self._layers, self._entropy = layers, entropy
            return
        copies.wait_stream(torch.cuda.current_stream(copies.device))
        with torch.cuda.stream(copies):
            self._layers = {layer: states.to("cpu", non_blocking=True) for layer, states in layers.items()}
            self._entropy = None if entropy is None else entropy.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record(copies)

    def result(self) -> StepStates:
        """Wait for the copy and return the states."""
        if self._copied is not None:
            self._copied.synchronize()
        layers = {layer: states.float().numpy() for layer, states in self._layers.items()}
        entropy = None if self._entropy is None else tuple(self._entropy.tolist())
        return StepStates(self._requests, self._tokens, layers, entropy)


def with_states(output: AsyncModelRunnerOutput, pending: PendingStates) -> AsyncModelRunnerOutput:
    """Return the output, which carries the states once it is resolved.

    It stays vLLM's own object, because releases add methods to it (0.33: `get_kv_connector_output`).
    """
    resolve = output.get_output

    def get_output() -> Any:
        found = resolve()
        attach(found, pending.result())
        return found

    output.get_output = get_output
    return output


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row in nats."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)
