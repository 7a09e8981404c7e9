"""The plug for vLLM's CPU worker: hidden states of chosen layers, handed to the scheduler with each step's output.

    --worker-cls lengthwise.engines.vllm_worker.StatesWorker
    --additional-config '{"lengthwise": {"probe": "default"}}'      or {"layers": [20]}

A forward hook on `model.model.layers[n - 1]` sees the state after n layers as (hidden, residual), whose sum it is; the
layers after change both in place, so the rows that matter are copied there and then. What it relies on, under
vllm/v1/worker (0.32): a step is execute_model, which leaves its logits in model_runner.execute_model_state, and then
sample_tokens, whose output goes to update_from_output; the rows of a step stand in the order of input_batch.req_ids,
each request's tokens together, and query_start_loc says where each begins; one row of logits for each request. Needs
--enforce-eager, or the hook is compiled away. vLLM's CPU build never schedules ahead, whatever it is told; with async
scheduling, as on a GPU, the states would ride on the output that is still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from vllm.v1.worker.cpu_worker import CPUWorker

from lengthwise.engines.refine import StepStates, Wanted, attach
from lengthwise.errors import InputError


class StatesWorker(CPUWorker):
    """vLLM's CPU worker, which also tells the hidden states of each request's last token."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passed on to vLLM as they are)
        """Load the LLM and look into it."""
        loaded = super().load_model(*args, **kwargs)
        self._seen: dict[int, Any] = {}
        self._reading = False
        self._step: Any = None
        self._wanted = Wanted.of((self.vllm_config.additional_config or {}).get("lengthwise", {}))
        layers = self.model_runner.get_model().model.layers
        for layer in self._wanted.layers:
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
        states = self._states()  # before: drawing changes logits and counts
        output = super().sample_tokens(grammar_output)
        if states is not None:
            attach(output, states)
        return output

    def _states(self) -> StepStates | None:
        """The rows of this step that are wanted: of whole prompts, and of every so many tokens of an answer."""
        batch = self.model_runner.input_batch
        names = batch.req_ids
        if not self._seen or any(len(rows) != len(names) for rows in self._seen.values()):
            return None
        scheduled = self._step.num_scheduled_tokens
        tokens = batch.num_computed_tokens_cpu[: len(names)] + np.array([scheduled[name] for name in names])
        age = tokens - batch.num_prompt_tokens[: len(names)]
        wanted = np.flatnonzero((age >= 0) & (age % self._wanted.every == 0))
        if not len(wanted):
            return None
        rows = torch.from_numpy(wanted)
        return StepStates(
            tuple(names[row] for row in wanted.tolist()),
            tuple(tokens[wanted].tolist()),
            {layer: seen[rows].float().numpy() for layer, seen in self._seen.items()},
            _entropy(self.model_runner.execute_model_state.logits[rows]) if self._wanted.entropy else None,
        )

    def _catch(self, layer: int) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:  # noqa: ANN401
            if self._reading:  # else it is warming up
                runner = self.model_runner
                last = runner.query_start_loc.gpu[1 : runner.input_batch.num_reqs + 1] - 1
                hidden, residual = output
                self._seen[layer] = hidden[last] + residual[last]

        return hook


def _entropy(logits: Any) -> tuple[float, ...]:  # noqa: ANN401
    """Of each row, nats."""
    log_share = torch.log_softmax(logits.float(), dim=-1)
    return tuple((-(log_share.exp() * log_share).sum(dim=-1)).tolist())
