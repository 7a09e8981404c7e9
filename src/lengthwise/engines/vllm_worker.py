"""The plug for vLLM's CPU worker: hidden states of chosen layers, handed to the scheduler with each step's output.

    --worker-cls lengthwise.engines.vllm_worker.StatesWorker
    --additional-config '{"lengthwise": {"layers": [20]}}'

A forward hook on `model.model.layers[n - 1]` sees the state after n layers as (hidden, residual), whose sum it is; the
layers after change both in place, so the rows that matter are copied there and then. What it relies on, under
vllm/v1/worker (0.32): a step is execute_model and then sample_tokens, whose output goes to update_from_output; the rows
of a step stand in the order of input_batch.req_ids, each request's tokens together, and query_start_loc says where each
begins. Needs --enforce-eager, or the hook is compiled away. vLLM's CPU build never schedules ahead, whatever it is
told; with async scheduling, as on a GPU, the states would ride on the output that is still to come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.worker.cpu_worker import CPUWorker

from lengthwise.engines.states import StepStates, attach
from lengthwise.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


class StatesWorker(CPUWorker):
    """vLLM's CPU worker, which also tells the hidden states of each request's last token."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passed on to vLLM as they are)
        """Load the LLM and look into it."""
        loaded = super().load_model(*args, **kwargs)
        self._seen: dict[int, Any] = {}
        self._reading = False
        self._step: Any = None
        options = (self.vllm_config.additional_config or {}).get("lengthwise", {})
        layers = self.model_runner.get_model().model.layers
        for layer in options.get("layers", ()):
            if not 1 <= layer <= len(layers):
                hint = f"give numbers from 1 to {len(layers)}"
                raise InputError(f"the LLM has {len(layers)} layers, not {layer}", field="layers", hint=hint)
            layers[layer - 1].register_forward_hook(self._catch(layer))
        return loaded

    def execute_model(self, scheduler_output: Any) -> Any:  # noqa: ANN401
        """Compute a step with open eyes."""
        self._seen.clear()
        self._reading = True
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._reading = False
            self._step = scheduler_output

    def sample_tokens(self, grammar_output: Any) -> Any:  # noqa: ANN401
        """Draw the step's tokens, and put the states beside them."""
        batch = self.model_runner.input_batch
        names = tuple(batch.req_ids)
        states = {layer: seen.float().numpy() for layer, seen in self._seen.items()}
        before = batch.num_computed_tokens_cpu[: len(names)].tolist()
        output = super().sample_tokens(grammar_output)
        if states and all(len(rows) == len(names) for rows in states.values()):
            scheduled = self._step.num_scheduled_tokens
            tokens = tuple(seen + scheduled[name] for name, seen in zip(names, before, strict=True))
            attach(output, StepStates(names, tokens, {layer: np.asarray(rows) for layer, rows in states.items()}))
        return output

    def _catch(self, layer: int) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:  # noqa: ANN401
            del module, inputs
            if self._reading:  # else it is warming up
                runner = self.model_runner
                last = runner.query_start_loc.gpu[1 : runner.input_batch.num_reqs + 1] - 1
                hidden, residual = output
                self._seen[layer] = hidden[last] + residual[last]

        return hook
