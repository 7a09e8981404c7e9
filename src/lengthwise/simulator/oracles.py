"""What the simulator can believe about a request without looking at its text: the truth, or nothing."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, LengthDistribution, Point

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Predict = Callable[[int, int | None], LengthDistribution | None]
    """(true length, max_tokens) -> belief."""


def oracle(true_length: int, max_tokens: int | None) -> LengthDistribution | None:
    """The true length, with certainty."""
    return Point(true_length, max(true_length, DEFAULT_CAP if max_tokens is None else max_tokens))


def no_belief(true_length: int, max_tokens: int | None) -> LengthDistribution | None:
    """Nothing: policies fall back on the wide prior."""
    del true_length, max_tokens
    return None


PREDICTORS: Final[Mapping[str, Predict]] = {"oracle": oracle, "none": no_belief}


def find_predictor(name: str) -> Predict:
    """The predictor of that name; an unknown one is an InputError with the nearest."""
    if name in PREDICTORS:
        return PREDICTORS[name]
    near = get_close_matches(name, PREDICTORS, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise InputError(f"there is no predictor '{name}'", hint=f"{meant}known are {', '.join(PREDICTORS)}")
