"""What policies have in common: a policy writes its formula once, and the rest of the contract follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import Policy, QueueView, Rekey, Rounds, Slots, one
from lengthwise.policies.job import Job

Numbers = Any
"""A float for one job, an array for columns of jobs; NumPy's functions, which take either, do not say so in types."""


def parameter(default: float | str, *, minimum: float, maximum: float = 1e9, choice: str | None = None) -> Any:  # noqa: ANN401
    """Declare a parameter of a policy: a number from `minimum` to `maximum`, or the word `choice` in its place."""
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum, "choice": choice})


@dataclass(frozen=True)
class BasePolicy(ABC):
    """Base class of policies: a subclass writes its formula, `score`, and the rest of the protocol follows.

    By default a waiting job preempts no running one, and when memory is short the last admitted job is preempted.
    Parameters are dataclass fields made with `parameter`: they are checked here, appear in the name and are read by
    `make_policy`. `kind` is the name without parameters: a policy outside this package leaves it out, and its kind is
    its dotted path.
    """

    kind: ClassVar[str]
    rekey: ClassVar[Rekey] = "never"
    uses_predictions: ClassVar[bool] = True
    preempts: ClassVar[bool] = False
    preempt_check_interval: ClassVar[int] = 0

    @abstractmethod
    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the place of one job or of many: smaller runs first."""

    @property
    def name(self) -> str:
        """The name with every parameter that is not the default."""
        return self.kind + parameter_suffix(self)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = f"{cls.__module__}:{cls.__qualname__}"

    def __post_init__(self) -> None:
        check_parameters(self)

    def level(self, queue: QueueView) -> int:
        """Keys do not depend on the queue."""
        return 0

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """The score of one job."""
        return float(self.score(job, queue, now))

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """The scores of many jobs."""
        return cast("NDArray[np.float64]", self.score(jobs, queue, now))

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """All alike, so that the last admitted yields, as in vLLM."""
        return np.zeros(len(jobs))

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Nobody yields to a waiting job."""
        return None

    def victim(self, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
        """The one who makes room for the candidate; without one, the readiest to yield."""
        return choose_victim(self, running, candidate, now)

    def rounds(self, slots: Slots = one) -> Rounds | None:
        """Nobody takes turns."""
        return None


def last_of_largest(readiness: NDArray[np.float64]) -> int:
    """The index of the largest, the last among equals: who yields, of jobs in order of admission."""
    return len(readiness) - 1 - int(np.argmax(readiness[::-1]))


def choose_victim(policy: Policy, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
    """Answer `victim` by `find_victim` and `eviction_scores`."""
    if not running or (candidate is not None and not policy.preempts):
        return None
    columns = JobColumns.of(running)
    if candidate is None:
        return running[last_of_largest(policy.eviction_scores(columns, now))]
    index = policy.find_victim(columns, candidate, now)
    return None if index is None else running[index]


def parameter_names(kind: type) -> list[str]:
    """Return the names of the fields that were made with `parameter`."""
    return [known.name for known in fields(kind) if "minimum" in known.metadata]


def check_parameters(policy: Any) -> None:  # noqa: ANN401
    """Raise InputError for a parameter that is neither a number in its range nor its `choice`."""
    for known in fields(policy):
        if "minimum" not in known.metadata:
            continue
        value, limits = getattr(policy, known.name), known.metadata
        if value == limits["choice"]:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and limits["minimum"] <= value <= limits["maximum"]):
            choice = "" if limits["choice"] is None else f", or '{limits['choice']}'"
            raise InputError(
                f"{known.name} of policy {policy.kind} is {value!r}",
                hint=f"give a number from {limits['minimum']:g} to {limits['maximum']:g}{choice}",
            )


def parameter_suffix(policy: Any) -> str:  # noqa: ANN401
    """Return the parameters that are not the default, as `make_policy` reads them: `:c=0.5`, or nothing."""
    given = [
        f"{known.name}={value if isinstance(value, str) else format(value, '.12g')}"
        for known in fields(policy)
        if "minimum" in known.metadata and (value := getattr(policy, known.name)) != known.default
    ]
    return ":" + ",".join(given) if given else ""
