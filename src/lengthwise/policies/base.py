"""`BasePolicy`: a policy from its formula. `Named` and `parameter`: names and parameters of policies and routers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import Policy, QueueView, Rekey, Rounds, Slots, one_slot
from lengthwise.specs import Kind, Spec

Numbers = Any
"""A float for one job, an array for columns of jobs; the types of NumPy's functions cannot express this."""


def parameter(default: float | str, *, minimum: float, maximum: float = 1e9, choice: str | None = None) -> Any:
    """Declare a parameter of a policy or router: a number from `minimum` to `maximum`, or the string `choice`."""
    return field(default=default, metadata={"minimum": minimum, "maximum": maximum, "choice": choice})


class Named:
    """A policy, wrapper or router with a `kind`: its name without parameters.

    Built-ins set it. A class outside this package leaves it out, and its kind is its dotted path, which `make_policy`
    and `make_router` read. Parameters are dataclass fields made with `parameter`.
    """

    what: ClassVar[Kind] = "policy"
    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = f"{cls.__module__}:{cls.__qualname__}"

    def __post_init__(self) -> None:
        check_parameters(self)


@dataclass(frozen=True)
class BasePolicy(Named, ABC):
    """A policy from one formula, `score`; the rest of the protocol follows and may be overridden.

    By default no running job is preempted for a waiting one, and when memory is short the last admitted is preempted,
    as in vLLM. Parameters are dataclass fields made with `parameter`: they are checked, are part of the name and are
    read by `make_policy`.
    """

    rekey: ClassVar[Rekey] = "never"
    uses_predictions: ClassVar[bool] = True
    preempts: ClassVar[bool] = False
    preempt_check_interval: ClassVar[int] = 0

    @abstractmethod
    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the key of one job or of many: smaller runs first."""

    @property
    def name(self) -> str:
        """The kind with every parameter that is not the default."""
        return self.kind + parameter_suffix(self)

    def level(self, queue: QueueView) -> int:
        """Return 0: keys do not depend on the queue."""
        return 0

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """Return the score of one job."""
        return float(self.score(job, queue, now))

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """Return the scores of many jobs."""
        return cast("NDArray[np.float64]", self.score(jobs, queue, now))

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return equal scores: the last admitted is preempted."""
        return np.zeros(len(jobs))

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Return None: no running job is preempted for a waiting one."""
        return None

    def rounds(self, slots: Slots = one_slot) -> Rounds | None:
        """Return None: no rounds."""
        return None


def last_of_largest(scores: NDArray[np.float64]) -> int:
    """Return the index of the largest score, the last among equals: the victim, of jobs in order of admission."""
    return len(scores) - 1 - int(np.argmax(scores[::-1]))


def choose_victim(policy: Policy, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
    """Return the running job to preempt, for hosts that hold jobs; `running` is in order of admission.

    With a candidate: the victim of `find_victim`, if any. Without: memory is short and one job must be preempted.
    """
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


def construct(found: Any, spec: Spec, kind: Kind, *inner: object) -> Any:
    """Return what a class makes of a spec's parameters; an object is returned as it is."""
    named = isinstance(found, type) and issubclass(found, Named)
    given = spec.arguments(parameter_names(found) if named else spec.parameters, kind)
    try:
        return found(*inner, **given) if callable(found) else found
    except TypeError as error:
        raise InputError(f"{kind} {spec.base} cannot be made: {error}") from error


def check_parameters(policy: Any) -> None:
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
                f"{known.name} of {policy.what} {policy.kind} is {value!r}",
                hint=f"give a number from {limits['minimum']:g} to {limits['maximum']:g}{choice}",
            )


def parameter_suffix(policy: Any) -> str:
    """Return the parameters that are not the default, as `make_policy` reads them: `:c=0.5`, or nothing."""
    given = [
        f"{known.name}={value if isinstance(value, str) else format(value, '.12g')}"
        for known in fields(policy)
        if "minimum" in known.metadata and (value := getattr(policy, known.name)) != known.default
    ]
    return ":" + ",".join(given) if given else ""
