"""A subclass of vLLM's CPU worker that passes hidden states of chosen layers to the scheduler with each step's output.

    --worker-cls lengthwise.engines.vllm_worker.StatesWorker
    --additional-config '{"lengthwise": {"probe": "default"}}'      or {"layers": [20]}

A forward hook on `model.model.layers[n - 1]` receives the state after n layers as (hidden, residual); the state is
their sum. Later layers change both in place, so the hook copies the rows that are needed. It relies on, under
vllm/v1/worker (0.32): a step is execute_model, which leaves its logits in model_runner.execute_model_state, and then
sample_tokens, the output of which is passed to update_from_output; the rows of a step are in the order of
input_batch.req_ids, the tokens of a request are adjacent, and query_start_loc holds the start of each; logits have one
row per request. Needs --enforce-eager, since compilation removes the hook. vLLM's CPU build never schedules ahead; with
async scheduling, as on a GPU, the states are attached to the output that the asynchronous one resolves to.
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
    """vLLM's CPU worker, which also reports the hidden states of each request's last token."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passed on to vLLM as they are)
        """Load the LLM and register the hooks."""
        loaded = super().load_model(*args, **kwargs)
        self._captured: dict[int, Any] = {}
        self._active = False
        self._step: Any = None
        self._wanted = Wanted.of((self.vllm_config.additional_config or {}).get("lengthwise", {}))
        layers = self.model_runner.get_model().model.layers
        for layer in self._wanted.layers:
            if not 1 <= layer <= len(layers):
                hint = f"give numbers from 1 to {len(layers)}"
                raise InputError(f"the LLM has {len(layers)} layers, not {layer}", field="layers", hint=hint)
            layers[layer - 1].register_forward_hook(self._capture(layer))
        return loaded

    def execute_model(self, scheduler_output: Any) -> Any:  # noqa: ANN401
        """Compute a step with the hooks active."""
        self._captured.clear()
        self._active = True
        try:
            return super().execute_model(scheduler_output)
        finally:
            self._active = False
            self._step = scheduler_output

    def sample_tokens(self, grammar_output: Any) -> Any:  # noqa: ANN401
        """Sample the step's tokens and attach the states to the output."""
        states = self._states()  # first: sampling changes logits and counts
        output = super().sample_tokens(grammar_output)
        if states is not None:
            attach(output, states)
        return output

    def _states(self) -> StepStates | None:
        """Return the states to report: at the end of a prompt and after every `every` tokens of an answer."""
        batch = self.model_runner.input_batch
        names = batch.req_ids
        if not self._captured or any(len(rows) != len(names) for rows in self._captured.values()):
            return None
        scheduled = self._step.num_scheduled_tokens
        tokens = batch.num_computed_tokens_cpu[: len(names)] + np.array([scheduled[name] for name in names])
        generated = tokens - batch.num_prompt_tokens[: len(names)]
        due = np.flatnonzero((generated >= 0) & (generated % self._wanted.every == 0))
        if not len(due):
            return None
        rows = torch.from_numpy(due)
        return StepStates(
            tuple(names[row] for row in due.tolist()),
            tuple(tokens[due].tolist()),
            {layer: states[rows].float().numpy() for layer, states in self._captured.items()},
            _entropy(self.model_runner.execute_model_state.logits[rows]) if self._wanted.entropy else None,
        )

    def _capture(self, layer: int) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:  # noqa: ANN401
            if self._active:  # not during warm-up
                runner = self.model_runner
                last = runner.query_start_loc.gpu[1 : runner.input_batch.num_reqs + 1] - 1
                hidden, residual = output
                self._captured[layer] = hidden[last] + residual[last]

        return hook


def _entropy(logits: Any) -> tuple[float, ...]:  # noqa: ANN401
    """Return the entropy of each row in nats."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    return tuple((-(log_p.exp() * log_p).sum(dim=-1)).tolist())
