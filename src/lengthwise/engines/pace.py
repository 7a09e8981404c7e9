"""Steps of a steady length, on a machine that is not steady.

A machine that others use too is a tenth faster or slower from one quarter of an hour to the next, and near capacity a
tenth moves every latency several times over. So each step of the LLM is held to the time that a cost model says for
what is in it: one that is over sooner waits, and one that took longer is made up for by those after it. What the engine
does between steps, scheduling above all, is not held: it costs what it costs. Knows no vLLM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lengthwise.engines.steps import held
from lengthwise.errors import InputError
from lengthwise.simulator.costs import StepCost
from lengthwise.workloads.files import atomic_path

WORKER: Final = "lengthwise.engines.vllm_paced.PacedWorker"
"""The worker of vLLM whose steps are held so."""
_IDLE_S: Final = 0.1
"""Longer than this before a step of new requests only, and the engine had nothing to do: it is behind no longer."""
_TOLD_S: Final = 2.0


@dataclass(frozen=True)
class Pace:
    """How long steps take, and where it is written how well that is kept."""

    cost: StepCost
    log: Path | None = None

    def options(self) -> dict[str, Any]:
        """For the engine's configuration."""
        return {"pace": asdict(self.cost), "pace_log": None if self.log is None else str(self.log)}


def pace_cost(said: Any) -> StepCost:  # noqa: ANN401  (whatever the engine's configuration holds)
    """The cost model that the option `pace` names."""
    try:
        return StepCost(**{str(key): float(value) for key, value in said.items()})
    except (AttributeError, TypeError, ValueError) as error:
        hint = "give the six seconds of a linear cost model, such as `lengthwise engine fit` writes"
        raise InputError(f"cannot read pace {said!r}", source="additional_config", hint=hint) from error


@dataclass(frozen=True)
class Kept:
    """How well a pace was kept."""

    steps: int
    late_steps: int
    """That ended more than a tenth of their time behind."""
    seconds: float
    """That the steps were to take."""
    behind_s: float
    """Mean, at the end of a step."""
    most_behind_s: float


class Pacer:
    """Holds steps: `begin` before one, `end` after it."""

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
        """A step begins. What the engine did since the last counts as it was.

        `goes_on`: some request was in a step before. Then there was something to do all the while, however long ago the
        last step was: a machine that was away for a while must not let one engine off what the next has to make up for.
        """
        now = self._clock()
        idle = not goes_on and now - self._ended > _IDLE_S
        self._due = now if idle else now - (self._ended - self._due)

    def end(self, spans: Iterable[tuple[int, int]]) -> None:
        """The step's work is done: wait for its end. `spans`: see `steps.held`."""
        cost, step = self._cost, held(spans)
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
        """How well it went so far."""
        mean = self._behind / self._steps if self._steps else 0.0
        return Kept(self._steps, self._late, self._seconds, mean, self._most)


class PaceLog:
    """Writes how well a pace is kept, now and then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told_s = 0.0

    def tell(self, pacer: Pacer) -> None:
        """Write it where that was not done for a while."""
        now = time.monotonic()
        if now - self._told_s > _TOLD_S:
            self._told_s = now
            with atomic_path(self._path) as path:
                path.write_text(json.dumps(asdict(pacer.kept)), encoding="utf-8")


def read_kept(path: Path) -> Kept | None:
    """What a `PaceLog` wrote; None where it did not."""
    try:
        told: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Kept(**told)
    except (OSError, ValueError, TypeError):
        return None
