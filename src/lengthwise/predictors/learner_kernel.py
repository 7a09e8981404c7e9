"""The arrays of a text regression and the functions on them: compiled with Numba, interpreted where it is missing.

`learner` states the model. A prompt is a list of term rows (words and pairs, hashed to ROWS), each with the value
1/sqrt(number of terms), and a vector of features. The last WINDOW answers are kept with a dual coefficient each, so
that the weights of a member are the sum over the answers of coefficient times description (kernel ridge regression).
Dual coordinate ascent solves for the coefficients: each observation revisits some of the kept answers. A revisit also
renews the answer's outlier weight and, where it is censored, its conditional expectation. Descriptions are less their
mean over the kept answers, so that what all answers have in common is left to the calibration. The mean is subtracted
where it matters, from products: with d the description of a prompt, d_i that of kept answer i with coefficient a_i,

    sum_i a_i (d_i - mean) . (d - mean) = w . d - mean_i(w . d_i) - mean_i(a_i) (D . d - D . mean),  D = sum_i d_i

A member has its own level of the kept answers, which the calibration does not use: coefficients add up to about 0.
"""

# Arguments are Any: Numba types them.

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.predictors.history import MEMORY

Function = TypeVar("Function", bound=Callable[..., Any])


def _interpreted(function: Function) -> Function:
    return function


compiled, inlined = _interpreted, _interpreted
VISITS = 1
"""Kept answers that an observation revisits, beside its own; interpreted, where a visit takes a millisecond."""
with contextlib.suppress(InputError):  # no Numba
    from lengthwise.compiled import compiled, inlined

    VISITS = 16

ROWS: Final = 1 << 14
"""Rows that terms are hashed to."""
TERMS: Final = 128
"""Terms of a prompt that are used, about; of more, those with the smallest hashes, which prompts share if they can."""
MAX_TERMS: Final = 160
WINDOW: Final = 1024
"""Answers that are kept, and after which an answer has lost 63 % of its weight."""

WIDTHS: Final = (0.0, 0.3, 1.0, 3.0, 10.0)
"""Prior variance of the text's part, by member; the member at 0 leaves it to the calibration."""
MEMBERS: Final = len(WIDTHS)
_CAUTION: Final = 0.1  # log prior odds of a member against the one with the next smaller width
_FEATURES: Final = 0.3  # prior variance of the features' part, as a share of the terms' part
_SLOPE: Final = 0.3  # likewise of the slope on the predicted log median

TARGET, MEDIAN, SPREAD, CENSORED, STAMP = range(5)
"""Columns of `answers`: log length less predicted log median (if censored, a lower bound), the predicted log median and
the log of its spread, both less what is usual, whether it is censored, and when it was observed."""
LIKELIHOOD, SHARE, SUM, DUALS, LEVEL, SCALE, COUNT = range(7)
"""Columns of `members`: relative log likelihood of past answers; share; sums over the kept answers, of w . d_i and of
the dual coefficients; mean of what the text leaves of the kept answers; running scale of the errors in units of the
predicted spread, and the answers behind it."""
DESCRIPTIONS: Final = MEMBERS
"""Column of weights that has D, the sum of the kept answers' descriptions."""
PRODUCTS: Final = 3
"""Products with D: of the terms, of the features and of the median."""
CLOCK, VISITED, SEED = range(3)
"""Positions in `counters`: answers observed, visits of kept ones, and the state of the generator that chooses them."""

_NU: Final = TIE_NU
_TAIL: Final = (_NU + 1.0) / 2.0
_FIRST_COUNT: Final = 5.0
_KEEP: Final = 0.999  # of the log likelihoods, with each answer
_LEVEL_MEMORY: Final = 300  # visits
_MIN_SCALE: Final = 0.02
_CLIP: Final = 4.0
_MAX_SCALES: Final = 30.0  # log survival is not computed farther out

_outlier_weight = inlined(log_t.outlier_weight)
_read_beyond = inlined(log_t.read_beyond)
_survival = inlined(log_t.survival)


class LearnerArrays(NamedTuple):
    """The state of a regression with room for some number of answers, WINDOW at most."""

    weights: NDArray[np.float32]
    """(ROWS, MEMBERS + 1), of terms"""
    feature_weights: NDArray[np.float32]
    """(features + 1, MEMBERS + 1); the last row is the slope on the predicted log median"""
    members: NDArray[np.float64]
    """(MEMBERS, 7)"""
    products: NDArray[np.float64]
    """D . D"""
    terms: NDArray[np.uint16]
    """(answers, MAX_TERMS)"""
    sizes: NDArray[np.int64]
    """Terms of each answer's prompt."""
    features: NDArray[np.float32]
    """(answers, features)"""
    answers: NDArray[np.float64]
    """(answers, 5)"""
    dual: NDArray[np.float32]
    """(answers, MEMBERS) dual coefficients"""
    counters: NDArray[np.int64]


def new_arrays(features: int, room: int) -> LearnerArrays:
    """Return an empty regression on this number of features, with room for so many answers."""
    return LearnerArrays(
        np.zeros((ROWS, MEMBERS + 1), np.float32),
        np.zeros((features + 1, MEMBERS + 1), np.float32),
        new_members(),
        np.zeros(PRODUCTS),
        np.zeros((room, MAX_TERMS), np.uint16),
        np.zeros(room, np.int64),
        np.zeros((room, features), np.float32),
        np.zeros((room, STAMP + 1)),
        np.zeros((room, MEMBERS), np.float32),
        np.zeros(SEED + 1, np.int64),
    )


def new_members() -> NDArray[np.float64]:
    """Return members before any answer: the smaller the width, the larger the share."""
    members = np.zeros((MEMBERS, COUNT + 1))
    members[:, LIKELIHOOD] = -_CAUTION * np.arange(MEMBERS)
    members[:, SHARE] = np.exp(members[:, LIKELIHOOD]) / np.exp(members[:, LIKELIHOOD]).sum()
    members[:, SCALE], members[:, COUNT] = 1.0, _FIRST_COUNT
    return members


@inlined
def _fold(terms: Any, features: Any, rows: Any, scaled: Any) -> Any:
    """Fill in the rows of the terms, and the features clipped and with a norm of about 1; return the number of rows.

    Of many terms those with the smallest hashes are used. Features that are not all finite are zeros.
    """
    limit, count = 4294967296.0 * TERMS / max(len(terms), TERMS), 0
    for place in range(len(terms)):
        hashed = ((np.int64(terms[place]) & 0xFFFFFFFF) * 2654435761) & 0xFFFFFFFF
        if hashed < limit and count < MAX_TERMS:
            rows[count] = hashed & (ROWS - 1)
            count += 1
    value, total = 1.0 / math.sqrt(max(len(features), 1)), 0.0
    for column in range(len(features)):
        scaled[column] = value * min(max(features[column], -_CLIP), _CLIP)
        total += features[column]
    if not math.isfinite(total):
        for column in range(len(features)):
            scaled[column] = 0.0
    return count


@compiled
def fold(terms: Any, features: Any, rows: Any, scaled: Any) -> Any:
    """Fill in an answer's description; return its number of rows."""
    return _fold(terms, features, rows, scaled)


@inlined
def _text_parts(
    weights: Any, feature_weights: Any, terms: Any, size: Any, features: Any, median: Any, out: Any
) -> None:
    """Fill in each member's part of the log median, then the overlaps with the sum of descriptions."""
    value, last = 1.0 / math.sqrt(max(size, 1)), len(features)
    for column in range(MEMBERS + PRODUCTS):
        out[column] = 0.0
    for place in range(size):
        row = terms[place]
        for column in range(MEMBERS + 1):
            out[column] += weights[row, column]
    for column in range(MEMBERS + 1):
        out[column] *= value
    for place in range(last):
        for member in range(MEMBERS):
            out[member] += features[place] * feature_weights[place, member]
        out[MEMBERS + 1] += features[place] * feature_weights[place, DESCRIPTIONS]
    for member in range(MEMBERS):
        out[member] += median * feature_weights[last, member]
    out[MEMBERS + 2] = median * feature_weights[last, DESCRIPTIONS]


@inlined
def _product(member: Any, products: Any, first: Any) -> Any:
    """Return a product of descriptions by a member's prior variances; it has its three parts from `first` on."""
    return WIDTHS[member] * (products[first] + _FEATURES * products[first + 1] + _SLOPE * products[first + 2])


@inlined
def _centre(members: Any, products: Any, held: Any, parts: Any) -> None:
    """Subtract the mean description from the parts."""
    for member in range(MEMBERS):
        beyond = _product(member, parts, MEMBERS) - _product(member, products, 0) / held
        parts[member] -= (members[member, SUM] + members[member, DUALS] * beyond) / held


@inlined
def _add(
    weights: Any,
    feature_weights: Any,
    members: Any,
    terms: Any,
    size: Any,
    features: Any,
    median: Any,
    steps: Any,
    parts: Any,
) -> None:
    """Add a kept answer's description, times a step for each member, to the weights; `parts` has its products."""
    value, last = 1.0 / math.sqrt(max(size, 1)), len(features)
    for member in range(MEMBERS):
        width = WIDTHS[member]
        if width > 0.0:
            step = np.float32(value * width * steps[member])
            for place in range(size):
                weights[terms[place], member] += step
            step = np.float32(_FEATURES * width * steps[member])
            for place in range(last):
                feature_weights[place, member] += step * features[place]
            feature_weights[last, member] += np.float32(_SLOPE * width * median * steps[member])
        members[member, SUM] += steps[member] * _product(member, parts, MEMBERS)
        members[member, DUALS] += steps[member]


@inlined
def _keep(
    weights: Any,
    feature_weights: Any,
    members: Any,
    products: Any,
    terms: Any,
    size: Any,
    features: Any,
    median: Any,
    sign: Any,
) -> None:
    """Add an answer to what is kept, or take it out again; its dual coefficients are 0."""
    parts = np.empty(MEMBERS + PRODUCTS)
    _text_parts(weights, feature_weights, terms, size, features, median, parts)
    for member in range(MEMBERS):
        members[member, SUM] += sign * parts[member]
    value, last = 1.0 / math.sqrt(max(size, 1)), len(features)
    for place in range(size):
        weights[terms[place], DESCRIPTIONS] += np.float32(sign * value)
    for place in range(last):
        feature_weights[place, DESCRIPTIONS] += np.float32(sign) * features[place]
    feature_weights[last, DESCRIPTIONS] += np.float32(sign * median)
    for product in range(PRODUCTS):
        products[product] += sign * parts[MEMBERS + product]
    _text_parts(weights, feature_weights, terms, size, features, median, parts)
    for product in range(PRODUCTS):  # before and after: 2 D . d + d . d
        products[product] += sign * parts[MEMBERS + product]


@compiled
def predict(
    weights: Any,
    feature_weights: Any,
    members: Any,
    products: Any,
    terms: Any,
    features: Any,
    median: Any,
    held: Any,
) -> Any:
    """Return what the text adds to the log median: the mean over the members by their shares."""
    parts, rows = np.empty(MEMBERS + PRODUCTS), np.empty(MAX_TERMS, np.uint16)
    scaled = np.empty(len(features), np.float32)
    size = _fold(terms, features, rows, scaled)
    _text_parts(weights, feature_weights, rows, size, scaled, median, parts)
    _centre(members, products, held, parts)
    found = 0.0
    for member in range(MEMBERS):
        found += members[member, SHARE] * parts[member]
    return found


@compiled
def judge(
    weights: Any,
    feature_weights: Any,
    members: Any,
    products: Any,
    terms: Any,
    features: Any,
    median: Any,
    error: Any,
    unit: Any,
    censored: Any,
    held: Any,
) -> None:
    """Update likelihood, share and scale of the members by an answer that none has seen.

    `error` is its log length less the predicted log median and the common shift; `unit` is its spread.
    """
    parts, rows = np.empty(MEMBERS + PRODUCTS), np.empty(MAX_TERMS, np.uint16)
    scaled = np.empty(len(features), np.float32)
    size = _fold(terms, features, rows, scaled)
    _text_parts(weights, feature_weights, rows, size, scaled, median, parts)
    _centre(members, products, held, parts)
    most = -math.inf
    for member in range(MEMBERS):
        scale = members[member, SCALE]
        z = (error - parts[member]) / (scale * unit)
        spread = 0.0
        if censored:
            found = math.log(_survival(min(z, _MAX_SCALES)))
            weight, z, spread = _read_beyond(z)
        else:
            found = -_TAIL * math.log1p(z * z / _NU) - math.log(scale)
            weight = _outlier_weight(z)
        kept = _KEEP * members[member, LIKELIHOOD] - (1.0 - _KEEP) * _CAUTION * member
        members[member, LIKELIHOOD] = kept + found
        count = members[member, COUNT]
        scale *= math.sqrt(1.0 + (weight * z * z + spread - 1.0) / count)
        members[member, SCALE] = max(scale, _MIN_SCALE)
        members[member, COUNT] = min(count + 1.0, MEMORY)
        most = max(most, members[member, LIKELIHOOD])
    total = 0.0
    for member in range(MEMBERS):
        members[member, LIKELIHOOD] -= most
        members[member, SHARE] = math.exp(members[member, LIKELIHOOD])
        total += members[member, SHARE]
    for member in range(MEMBERS):
        members[member, SHARE] /= total


@compiled
def learn(
    weights: Any,
    feature_weights: Any,
    members: Any,
    products: Any,
    terms: Any,
    sizes: Any,
    features: Any,
    answers: Any,
    dual: Any,
    counters: Any,
    scale: Any,
    exponent: Any,
    visits: Any,
) -> None:
    """Fit the newest answer and some earlier ones anew.

    The newest is in its place already. `scale` is that of the errors at the usual spread, `exponent` that of the
    predicted spread.
    """
    parts, steps = np.empty(MEMBERS + PRODUCTS), np.empty(MEMBERS)
    room = len(sizes)
    newest = (counters[CLOCK] - 1) % room
    held = min(counters[CLOCK], room)
    median = answers[newest, MEDIAN]
    _keep(weights, feature_weights, members, products, terms[newest], sizes[newest], features[newest], median, 1.0)
    for visit in range(visits + 1):
        at = newest
        if visit > 0:
            counters[SEED] = (counters[SEED] * 1103515245 + 12345) % 2147483648
            at = (counters[SEED] >> 8) % held
        median = answers[at, MEDIAN]
        _text_parts(weights, feature_weights, terms[at], sizes[at], features[at], median, parts)
        _centre(members, products, held, parts)
        mean = 0.0
        for member in range(MEMBERS):
            mean += members[member, SHARE] * (members[member, LEVEL] + parts[member])
        target, unit = answers[at, TARGET], math.exp(exponent * answers[at, SPREAD])
        z = (target - mean) / (scale * unit)
        if answers[at, CENSORED] > 0.0:
            weight, z, _ = _read_beyond(z)
            target = mean + scale * unit * z
        else:
            weight = _outlier_weight(z)
        noise = unit * unit / weight * math.exp((counters[CLOCK] - answers[at, STAMP]) / WINDOW)
        counters[VISITED] = min(counters[VISITED] + 1, _LEVEL_MEMORY)
        gain = min(weight, 1.0) / counters[VISITED] if counters[VISITED] > 1 else 1.0
        squares = 0.0
        for column in range(features.shape[1]):
            squares += features[at, column] * features[at, column]
        for member in range(MEMBERS):
            own = WIDTHS[member] * (min(sizes[at], 1) + _FEATURES * squares + _SLOPE * median * median)
            own += (_product(member, products, 0) / held - 2.0 * _product(member, parts, MEMBERS)) / held
            rest = target - parts[member] - members[member, LEVEL]
            members[member, LEVEL] += gain * rest
            steps[member] = (rest - noise * dual[at, member]) / (max(own, 0.0) + noise)
            dual[at, member] += steps[member]
        _add(weights, feature_weights, members, terms[at], sizes[at], features[at], median, steps, parts)


@compiled
def remove(
    weights: Any,
    feature_weights: Any,
    members: Any,
    products: Any,
    terms: Any,
    sizes: Any,
    features: Any,
    answers: Any,
    dual: Any,
    at: Any,
) -> None:
    """Take an answer out of what is kept."""
    parts, steps, median = np.empty(MEMBERS + PRODUCTS), np.empty(MEMBERS), answers[at, MEDIAN]
    _text_parts(weights, feature_weights, terms[at], sizes[at], features[at], median, parts)
    for member in range(MEMBERS):
        steps[member] = -dual[at, member]
        dual[at, member] = 0.0
    _add(weights, feature_weights, members, terms[at], sizes[at], features[at], median, steps, parts)
    _keep(weights, feature_weights, members, products, terms[at], sizes[at], features[at], median, -1.0)


@compiled
def rebuild(
    weights: Any,
    feature_weights: Any,
    members: Any,
    products: Any,
    terms: Any,
    sizes: Any,
    features: Any,
    answers: Any,
    dual: Any,
    held: Any,
) -> None:
    """Compute weights and sums anew from the kept answers: rounding errors do not add up, and a state lacks them."""
    weights[:] = 0.0
    feature_weights[:] = 0.0
    members[:, SUM] = 0.0
    members[:, DUALS] = 0.0
    products[:] = 0.0
    parts, steps = np.empty(MEMBERS + PRODUCTS), np.empty(MEMBERS)
    for at in range(held):
        median = answers[at, MEDIAN]
        _keep(weights, feature_weights, members, products, terms[at], sizes[at], features[at], median, 1.0)
        _text_parts(weights, feature_weights, terms[at], sizes[at], features[at], median, parts)
        for member in range(MEMBERS):
            steps[member] = dual[at, member]
        _add(weights, feature_weights, members, terms[at], sizes[at], features[at], median, steps, parts)
