"""The text's part of the log median of one LLM: a regression on its last answers (`learner` states the model)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.predictors import learner_kernel as kernel
from lengthwise.predictors.contract import Description

NOTHING: Final = Description(np.empty(0, np.int32), np.empty(0, np.float32))
"""The description of a prompt that is not read."""

_FIRST_ROOM: Final = 64  # answers; doubled up to the window
_DOUBT: Final = 30.0  # answers at which half of the part is used: the first ones say little, and cost order
_KEPT: Final = ("terms", "sizes", "features", "answers", "dual")
STORED: Final = (*_KEPT, "members", "counters")
"""Names of the arrays of a state."""


class TextRegression:
    """Regressions with several prior widths on the last answers, averaged by their likelihood so far."""

    def __init__(self, features: int, arrays: kernel.LearnerArrays | None = None) -> None:
        self.arrays = kernel.new_arrays(features, _FIRST_ROOM) if arrays is None else arrays

    @classmethod
    def restored(cls, stored: Mapping[str, NDArray[Any]], features: int) -> TextRegression:
        """Return the regression of a state; ValueError where its arrays are not one."""
        held = len(stored["sizes"])
        room = next(size for size in _rooms() if size >= held)
        arrays = kernel.new_arrays(features, room)
        for name in STORED:
            value, like = stored[name], getattr(arrays, name)
            fits = value.dtype == like.dtype and value.shape[1:] == like.shape[1:]
            if not fits or not np.isfinite(value).all() or (name in _KEPT and len(value) != held):
                raise ValueError("not a regression")
            like[: len(value)] = value
        sizes, observed = stored["sizes"], int(stored["counters"][kernel.CLOCK])
        if held != min(observed, room) or (held and (sizes.min() < 0 or sizes.max() > kernel.MAX_TERMS)):
            raise ValueError("not a regression")
        if stored["terms"].max(initial=0) >= kernel.ROWS or (stored["members"][:, kernel.SCALE :] <= 0).any():
            raise ValueError("not a regression")
        text = cls(features, arrays)
        text.rebuild()
        return text

    @property
    def observed(self) -> int:
        """Answers so far."""
        return int(self.arrays.counters[kernel.CLOCK])

    @property
    def held(self) -> int:
        """Answers that are kept."""
        return min(self.observed, len(self.arrays.sizes))

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(each.nbytes for each in self.arrays)

    def copy(self) -> TextRegression:
        """Return a regression that goes on from here; its members start with equal shares."""
        copied = _with_room(self.arrays, len(self.arrays.sizes))
        fresh = kernel.new_members()
        fresh[:, kernel.SUM : kernel.SCALE] = copied.members[:, kernel.SUM : kernel.SCALE]
        return TextRegression(0, copied._replace(members=fresh))

    def part(self, prompt: Description, median: float) -> float:
        """Return what is added to the log median; `median` is the predicted one less the usual one.

        Of the first answers a part only: n / (n + 30) after n.
        """
        arrays = self.arrays
        found = kernel.predict(
            arrays.weights, arrays.feature_weights, arrays.members, arrays.products, prompt.terms, prompt.features,
            median, max(1, self.held),
        )  # fmt: skip
        return float(found) * self.observed / (self.observed + _DOUBT)

    def judge(self, prompt: Description, median: float, error: float, unit: float, *, censored: bool) -> None:
        """Update the shares by an answer that is not yet learned; `error` is less the shift."""
        kernel.judge(*self.arrays[:4], prompt.terms, prompt.features, median, error, unit, censored, max(1, self.held))

    def learn(
        self,
        prompt: Description,
        target: float,
        median: float,
        spread: float,
        scale: float,
        exponent: float,
        *,
        censored: bool,
    ) -> None:
        """Learn an answer; `scale` is that of the errors at the usual spread, `exponent` that of the predicted one."""
        if 1 < self.observed == len(self.arrays.sizes) < kernel.WINDOW:
            self.arrays = _with_room(self.arrays, min(2 * self.observed, kernel.WINDOW))
        arrays = self.arrays
        at = self.observed % len(arrays.sizes)
        if self.observed >= len(arrays.sizes):
            kernel.remove(*arrays[:-1], at)
        arrays.counters[kernel.CLOCK] += 1
        arrays.sizes[at] = kernel.fold(prompt.terms, prompt.features, arrays.terms[at], arrays.features[at])
        arrays.answers[at] = target, median, spread, float(censored), arrays.counters[kernel.CLOCK]
        kernel.learn(*arrays, scale, exponent, kernel.VISITS)
        if self.observed % kernel.WINDOW == 0:
            self.rebuild()  # rounding errors of sums that answers join and leave do not add up

    def move(self, step: float) -> None:
        """Move the kept answers with a change of the LLM."""
        self.arrays.answers[:, kernel.TARGET] += step
        self.arrays.members[:, kernel.LEVEL] += step

    def rebuild(self) -> None:
        """Compute the weights anew from the kept answers, so that a state without them is exact."""
        kernel.rebuild(*self.arrays[:-1], self.held)

    def stored(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of a state: the kept answers. The weights, which follow from them, are computed anew."""
        self.rebuild()
        kept = {name: getattr(self.arrays, name)[: self.held] for name in _KEPT}
        return {**kept, "members": self.arrays.members, "counters": self.arrays.counters}


def try_kernel() -> None:
    """Compile the kernels now, so that no request waits for them."""
    text = TextRegression(0, kernel.new_arrays(0, 1))
    text.judge(NOTHING, 0.0, 0.0, 1.0, censored=False)
    for _ in range(2):
        text.learn(NOTHING, 0.0, 0.0, 0.0, 1.0, 1.0, censored=False)
    text.part(NOTHING, 0.0)
    text.rebuild()


def _with_room(arrays: kernel.LearnerArrays, room: int) -> kernel.LearnerArrays:
    """Return a copy with room for so many answers."""
    wider = kernel.new_arrays(arrays.features.shape[1], room)
    for name in arrays._fields:
        original: NDArray[Any] = getattr(arrays, name)
        getattr(wider, name)[: len(original)] = original
    return wider


def _rooms() -> list[int]:
    rooms = [_FIRST_ROOM]
    while rooms[-1] < kernel.WINDOW:
        rooms.append(min(2 * rooms[-1], kernel.WINDOW))
    return rooms
