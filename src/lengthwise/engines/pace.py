"""Pace an engine's steps, for measurements on a machine whose speed varies.

The speed of a shared machine varies by a tenth within a quarter of an hour, and near capacity a tenth changes every
latency severalfold. So each step of the LLM takes the time that a cost model gives for its content: a step that ends
sooner waits, and the delay of one that takes longer is recovered by the steps after it. Work between steps, scheduling
above all, is not paced. Imports nothing of vLLM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lengthwise.engines.steps import step_content
from lengthwise.errors import InputError
from lengthwise.simulator.costs import StepCost
from lengthwise.workloads.files import atomic_path

WORKER: Final = "lengthwise.engines.vllm_paced.PacedWorker"
"""The vLLM worker with paced steps."""
_IDLE_S: Final = 0.1
"""If a step has new requests only and starts longer than this after the last one, the engine was idle: no delay
remains to be recovered."""
_WRITE_INTERVAL_S: Final = 2.0


@dataclass(frozen=True)
class Pace:
    """The cost model of paced steps, and the file to which its accuracy is logged."""

    cost: StepCost
    log: Path | None = None

    def options(self) -> dict[str, Any]:
        """Return the options for the engine's configuration."""
        return {"pace": asdict(self.cost), "pace_log": None if self.log is None else str(self.log)}


def pace_cost(option: Any) -> StepCost:  # noqa: ANN401  (any JSON value)
    """Return the cost model in the option `pace`."""
    try:
        return StepCost(**{str(key): float(value) for key, value in option.items()})
    except (AttributeError, TypeError, ValueError) as error:
        hint = "give the six coefficients of a linear cost model, as `lengthwise engine fit` writes them"
        raise InputError(f"cannot read pace {option!r}", source="additional_config", hint=hint) from error


@dataclass(frozen=True)
class Kept:
    """How closely a pace was followed."""

    steps: int
    late_steps: int
    """Steps that ended late by more than a tenth of their duration."""
    seconds: float
    """Total duration of the steps under the cost model."""
    behind_s: float
    """Mean delay at the end of a step."""
    most_behind_s: float


class Pacer:
    """Paces steps: call `begin` before a step and `end` after it."""

    def __init__(
        self,
        cost: StepCost,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cost = cost
        self._clock = clock
        self._sleep = sleep
        self._due = self._ended = -1.0
        self._steps = self._late = 0
        self._seconds = self._behind = self._most = 0.0

    def begin(self, *, goes_on: bool) -> None:
        """Start a step; the time since the last step is not paced.

        `goes_on`: a request of this step was in an earlier one. Then the engine was not idle, however long ago the last
        step was, and its delay remains to be recovered: a stall of the machine must not favour one engine.
        """
        now = self._clock()
        idle = not goes_on and now - self._ended > _IDLE_S
        self._due = now if idle else now - (self._ended - self._due)

    def end(self, spans: Iterable[tuple[int, int]]) -> None:
        """Wait until the step's time is over. `spans`: see `steps.step_content`."""
        cost, step = self._cost, step_content(spans)
        if not step.tokens:
            self._ended = self._due = self._clock()
            return
        seconds = (
            (cost.decode_base if step.decodes else cost.prefill_base)
            + cost.prefill_token * step.prompt_tokens
            + cost.prefill_pair * step.prompt_pairs
            + cost.decode * step.decodes
            + cost.kv_token * step.context_tokens
        )
        self._due += seconds
        left = self._due - self._clock()
        if left > 0:
            self._sleep(left)
        self._ended = self._clock()
        behind = self._ended - self._due
        self._steps += 1
        self._late += behind > 0.1 * seconds
        self._seconds += seconds
        self._behind += behind
        self._most = max(self._most, behind)

    @property
    def kept(self) -> Kept:
        """How closely the pace was followed so far."""
        mean = self._behind / self._steps if self._steps else 0.0
        return Kept(self._steps, self._late, self._seconds, mean, self._most)


class PaceLog:
    """Writes a pacer's accuracy to a file, every few seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_s = 0.0

    def update(self, pacer: Pacer) -> None:
        """Write the file unless it was written within the last seconds."""
        now = time.monotonic()
        if now - self._written_s > _WRITE_INTERVAL_S:
            self._written_s = now
            with atomic_path(self._path) as path:
                path.write_text(json.dumps(asdict(pacer.kept)), encoding="utf-8")


def read_kept(path: Path) -> Kept | None:
    """Read the file of a `PaceLog`; None if there is none."""
    try:
        fields: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Kept(**fields)
    except (OSError, ValueError, TypeError):
        return None
