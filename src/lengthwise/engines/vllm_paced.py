"""The plug for vLLM's CPU worker that holds its steps to a pace, for measurements on a machine that is not steady.

    --worker-cls lengthwise.engines.vllm_paced.PacedWorker
    --additional-config '{"lengthwise": {"pace": {"prefill_base": ..., "decode_base": ..., ...}}}'

It works under vLLM's own scheduler too, and changes nothing but how long execute_model takes (`engines.pace`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from lengthwise.engines.pace import PaceLog, Pacer, pace_cost
from lengthwise.engines.steps import spans


class PacedWorker(CPUWorker):
    """vLLM's CPU worker, whose steps take as long as a cost model says."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (passed on to vLLM as they are)
        """Load the LLM and read the pace."""
        options = (self.vllm_config.additional_config or {}).get("lengthwise", {})
        self._pacer = Pacer(pace_cost(options.get("pace")))
        log = options.get("pace_log")
        self._log = None if log is None else PaceLog(Path(log))
        return super().load_model(*args, **kwargs)

    def execute_model(self, scheduler_output: Any) -> Any:  # noqa: ANN401
        """Compute a step, and let it take its time."""
        self._pacer.begin(goes_on=bool(scheduler_output.scheduled_cached_reqs.req_ids))
        output = super().execute_model(scheduler_output)
        self._pacer.end(spans(scheduler_output))
        if self._log is not None:
            self._log.tell(self._pacer)
        return output
