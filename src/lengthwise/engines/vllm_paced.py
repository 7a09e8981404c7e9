"""A subclass of vLLM's CPU worker with paced steps, for measurements on a machine whose speed varies.

    --worker-cls lengthwise.engines.vllm_paced.PacedWorker
    --additional-config '{"lengthwise": {"pace": {"prefill_base": ..., "decode_base": ..., ...}}}'

It works under vLLM's scheduler too, and changes only the duration of execute_model (`engines.pace`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from lengthwise.engines.pace import PaceLog, Pacer, pace_cost
from lengthwise.engines.steps import spans


class PacedWorker(CPUWorker):
    """vLLM's CPU worker, with steps that take the time of a cost model."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passed on to vLLM as they are)
        """Load the LLM and read the pace."""
        options = (self.vllm_config.additional_config or {}).get("lengthwise", {})
        self._pacer = Pacer(pace_cost(options.get("pace")))
        log = options.get("pace_log")
        self._log = None if log is None else PaceLog(Path(log))
        return super().load_model(*args, **kwargs)

    def execute_model(self, scheduler_output: Any) -> Any:  # noqa: ANN401
        """Compute a step, and wait until its time is over."""
        self._pacer.begin(goes_on=bool(scheduler_output.scheduled_cached_reqs.req_ids))
        output = super().execute_model(scheduler_output)
        self._pacer.end(spans(scheduler_output))
        if self._log is not None:
            self._log.update(self._pacer)
        return output
