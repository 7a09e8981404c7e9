"""The network in NumPy: a prompt's description and an LLM's identity in, a prediction's parameters out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from scipy.linalg import block_diag

from lengthwise.predictors.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

CLIP: Final = 4.0
"""Standardised inputs are cut here: no prompt may drive the network further than training ever did."""

OUTPUTS: Final = 4

SIGMA_AT_ZERO: Final = -1.2
"""Log sigma of a prediction where the network says 0; its outputs then start near what is usual."""

STD_BELOW_MEAN: Final = 2.0
"""Logs between an LLM's usual length and the sampling std where the network says 0."""


@dataclass(frozen=True, eq=False)
class Network(Weights):
    """x = clip((description - centre) / spread); z = relu(x A + a); h = relu(z B + who); y = h C + z D + c.

    who = b + V (identity row of the LLM + features of its name K). The last identity row is for unknown LLMs.
    Outputs: log median, log sigma, log mean and log std of repeated answers, relative to the LLM's usual log length.
    """

    centre: Floats
    spread: Floats
    a: Floats
    a_bias: Floats
    b: Floats
    b_bias: Floats
    v: Floats
    identity: Floats
    k: Floats
    c: Floats
    d: Floats
    c_bias: Floats

    @classmethod
    def mean(cls, networks: Sequence[Self]) -> Self:
        """Return one network that says the mean of what several say; they must standardise alike."""
        first, share = networks[0], np.float32(1.0 / len(networks))
        beside = {name: np.concatenate([getattr(one, name) for one in networks], axis=-1)
                  for name in ("a", "a_bias", "b_bias", "identity", "k")}  # fmt: skip
        apart = {name: block_diag(*(getattr(one, name) for one in networks)) for name in ("b", "v")}
        below = {name: np.concatenate([getattr(one, name) for one in networks]) * share for name in ("c", "d")}
        bias = np.mean([one.c_bias for one in networks], axis=0)
        return cls.of({"centre": first.centre, "spread": first.spread, **beside, **apart, **below, "c_bias": bias})

    def who(self, row: int, name_features: Floats) -> Floats:
        """Return what an LLM adds to the hidden layer; the same for all its prompts."""
        return np.asarray((self.identity[row] + name_features @ self.k) @ self.v + self.b_bias, np.float32)

    def standardise(self, description: Floats) -> Floats:
        """Return a description in spreads from the centre, cut."""
        x: Floats = description - self.centre
        x /= self.spread
        np.maximum(x, -CLIP, out=x)
        np.minimum(x, CLIP, out=x)
        return x

    def prompt(self, x: Floats) -> tuple[Floats, Floats]:
        """Return what one prompt adds to the hidden layer and to the outputs, whoever answers.

        One at a time: for many rows at once BLAS wakes its threads, which costs more CPU time than it saves.
        """
        z: Floats = x @ self.a
        z += self.a_bias
        np.maximum(z, 0.0, out=z)
        direct: Floats = z @ self.d
        direct += self.c_bias
        hidden: Floats = z @ self.b
        return hidden, direct

    def outputs(self, hidden: Floats, direct: NDArray[Any]) -> NDArray[Any]:
        """Return (..., 4) of what prompts and LLMs add to the hidden layer, which is used up, and to the outputs."""
        np.maximum(hidden, 0.0, out=hidden)
        return np.asarray(hidden @ self.c + direct)
