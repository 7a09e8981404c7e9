"""What runs in a host's predictor process: one or two predictors, and what each learns from the answers.

A predictor of the package has a `learner.Learner` around it, which starts from its predictions and combines what the
text, the LLM and the prefix show. One of another package that learns by itself is taught too; around it are calibration
and prefix memory. Requests are remembered here by their number until they end, so that no text is sent twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from lengthwise.predictors.contract import (
    LearningPredictor,
    LengthPredictor,
    LogTPredictions,
    PredictionInput,
    Predictions,
    as_logt,
)
from lengthwise.predictors.state_file import kind_of, part_name, tenant_of

if TYPE_CHECKING:  # loads the compiled kernels, which a host without learning does not need
    from lengthwise.predictors.learner import Learner

Load = Callable[[], LengthPredictor]

LEARNERS: Final = ("learner", "learner of quick")
OWN: Final = "predictor"
"""Kinds of parts of the learned state: the learners around both predictors, and what the first has learned itself."""

MAX_TENANTS: Final = 16
"""Tenants for which a predictor that learns by itself is made, where it does not keep them apart."""


class Predicted(NamedTuple):
    """The predictions of some requests."""

    made: Predictions
    alone: Predictions | None
    """Of the model alone; None where it is the same."""


class Ending(NamedTuple):
    """The end of a request that was predicted; `tokens` is None if its length is unknown."""

    number: int
    tokens: int | None
    censored: bool


class Taught(NamedTuple):
    """What became of the lengths that predictors observed."""

    observed: int
    learned: int
    """Of these: by a predictor that learns by itself."""
    errors: tuple[str, ...]
    """What that one raised, or a learner did."""


@runtime_checkable
class Served(Protocol):
    """Predictors as a worker calls them, in this process or in another."""

    @property
    def places(self) -> int:
        """How many predictors there are: the first, and perhaps a quick one."""

    def serve(self, place: int, inputs: Sequence[PredictionInput], numbers: Sequence[int] | None) -> Predicted:
        """Predict with the first predictor, or with the quick one (place 1); remember the requests by their numbers."""

    def end(self, endings: Sequence[Ending]) -> Taught:
        """Let what predicted these requests observe their lengths, and forget the requests."""

    def keep_tenants_apart(self, apart: bool) -> None:
        """Learn from each tenant apart, or from all together."""

    def state(self) -> dict[str, bytes]:
        """Return what is learned, in parts."""

    def restore(self, parts: Mapping[str, bytes]) -> list[str]:
        """Continue from what `state` returned; return why parts cannot be used, which are then learned anew."""

    def reset(self) -> None:
        """Forget what is learned."""


class ServedPredictors:
    """The predictors themselves. Each is made by one of `loads`; without `learning` nothing is observed."""

    def __init__(self, *loads: Load, learning: bool = True) -> None:
        self._learning = learning
        self._tenants_apart = False
        self._parts = [_Part(load, learning=learning) for load in loads]
        self._open: dict[int, tuple[_Part, PredictionInput]] = {}

    @property
    def places(self) -> int:
        """How many predictors there are."""
        return len(self._parts)

    def serve(self, place: int, inputs: Sequence[PredictionInput], numbers: Sequence[int] | None) -> Predicted:
        """Predict with the first predictor, or with the quick one (place 1); remember the requests by their numbers."""
        part = self._parts[place]
        found = part.predict(inputs)
        if self._learning:
            self._open.update((number, (part, each)) for number, each in zip(numbers or (), inputs, strict=False))
        return found

    def end(self, endings: Sequence[Ending]) -> Taught:
        """Let what predicted these requests observe their lengths, and forget the requests."""
        observed = learned = 0
        errors: list[str] = []
        for number, tokens, censored in endings:
            part, request = self._open.pop(number, (None, None))
            if part is None or request is None or tokens is None:
                continue
            try:
                part.observe(request, tokens, censored=censored)
                observed += 1
                learned += part.teach(request, tokens, censored=censored)
            except Exception as error:  # the others are still observed
                errors.append(text_of(error))
        return Taught(observed, learned, tuple(errors))

    def keep_tenants_apart(self, apart: bool) -> None:
        """Learn from each tenant apart, or from all together."""
        self._tenants_apart = apart
        for part in self._parts:
            part.keep_tenants_apart(apart)

    def state(self) -> dict[str, bytes]:
        """Return what is learned, in parts."""
        learners = {name: part.learner for name, part in zip(LEARNERS, self._parts, strict=False)}
        found = {name: learner.state() for name, learner in learners.items() if learner is not None}
        own = self._parts[0].own
        return found | ({} if own is None else own.states())

    def restore(self, parts: Mapping[str, bytes]) -> list[str]:
        """Continue from what `state` returned; return why parts cannot be used, which are then learned anew."""
        errors = []
        for name, kept in parts.items():
            try:
                if name in LEARNERS[: len(self._parts)]:
                    learner = self._parts[LEARNERS.index(name)].learner
                    if learner is not None:
                        learner.restore(kept)
                elif kind_of(name) == OWN and (own := self._parts[0].own) is not None:
                    own.of(tenant_of(name), apart=True).restore(kept)
            except Exception as error:  # of a predictor of any package
                errors.append(f"{name}: {text_of(error)}")
        return errors

    def reset(self) -> None:
        """Forget what is learned."""
        self._parts = [_Part(part.load, learning=self._learning) for part in self._parts]
        self._open.clear()
        self.keep_tenants_apart(self._tenants_apart)


class _Part:
    """One predictor with what learns around it."""

    def __init__(self, load: Load, *, learning: bool) -> None:
        self.load = load
        self.predictor = load()
        self.own: _TenantPredictors | None = None
        self.learner: Learner | None = None
        if learning:
            from lengthwise.predictors.learner import Learner

            if isinstance(self.predictor, LearningPredictor):
                self.own = _TenantPredictors(load, self.predictor)
            self.learner = Learner(self.own or self.predictor, learning=self.own is None, memory=True)

    def predict(self, inputs: Sequence[PredictionInput]) -> Predicted:
        if self.learner is None:
            return Predicted(self.predictor.predict(inputs), None)
        made = self.learner.predict(inputs)
        return Predicted(made, self.learner.alone(inputs))

    def observe(self, request: PredictionInput, tokens: int, *, censored: bool) -> None:
        if self.learner is not None:
            self.learner.observe(request, tokens, censored=censored)

    def teach(self, request: PredictionInput, tokens: int, *, censored: bool) -> int:
        """Let a predictor that learns by itself observe a length; return how many did."""
        if self.own is None:
            return 0
        self.own.of(request.tenant).observe(request, tokens, censored=censored)
        return 1

    def keep_tenants_apart(self, apart: bool) -> None:
        if self.learner is not None:
            self.learner.tenants_apart = apart
        if self.own is not None:
            self.own.keep_apart(apart)


class _TenantPredictors:
    """A predictor that learns by itself, and where tenants are apart one more for each of them.

    Where it has an attribute `tenants_apart`, that is set instead, and it keeps them apart itself.
    """

    def __init__(self, load: Load, first: LearningPredictor) -> None:
        self._load = load
        self._first = first
        self._apart = False
        self._tenants: OrderedDict[str, LearningPredictor] = OrderedDict()

    def keep_apart(self, apart: bool) -> None:
        if hasattr(self._first, "tenants_apart"):
            self._first.tenants_apart = apart
        else:
            self._apart = apart

    def of(self, tenant: str | None, *, apart: bool | None = None) -> LearningPredictor:
        """Return the predictor of a tenant."""
        if tenant is None or not (self._apart if apart is None else apart):
            return self._first
        if tenant not in self._tenants:
            self._tenants[tenant] = cast("LearningPredictor", self._load())
            if len(self._tenants) > MAX_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return self._tenants[tenant]

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        """Return one prediction for each input, in order."""
        if not self._apart:
            return self._first.predict(inputs)
        by_tenant: dict[str | None, list[int]] = {}
        for row, each in enumerate(inputs):
            by_tenant.setdefault(each.tenant, []).append(row)
        found = [
            (rows, as_logt(self.of(tenant).predict([inputs[row] for row in rows])))
            for tenant, rows in by_tenant.items()
        ]
        order = np.argsort(np.concatenate([rows for rows, _ in found]))
        columns = {
            name: np.concatenate([getattr(part, name) for _, part in found])[order]
            for name in ("mu", "sigma", "cap", "sample_mean", "sample_std")
        }
        return LogTPredictions(nu=found[0][1].nu, **columns)

    def states(self) -> dict[str, bytes]:
        """Return what each has learned, by the names of its part."""
        all_ = ((None, self._first), *self._tenants.items())
        return {part_name(OWN, tenant): bytes(each.state()) for tenant, each in all_}


def text_of(error: Exception) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {error}"
