"""The network in NumPy: a prompt's description and an LLM's identity in, a belief's parameters out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

CLIP: Final = 4.0
"""Standardised inputs are cut here: no prompt may drive the network further than training ever did."""

SIGMA_AT_ZERO: Final = -1.2
"""Log sigma of a belief where the network says 0; its outputs then start near what is usual."""

STD_BELOW_MEAN: Final = 2.0
"""Logs between an LLM's usual length and the sampling std where the network says 0."""


@dataclass(frozen=True, eq=False)
class Network:
    """x = clip((description - centre) / spread); z = relu(x A + a); h = relu(z B + who); y = h C + z D + c.

    who = b + V (identity row of the LLM + features of its name K). The last identity row is for unknown LLMs.
    The leading axis of the weights counts networks trained apart, whose outputs are averaged. Outputs: log
    median, log sigma, log mean and log std of repeated answers, relative to the LLM's usual log length.
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
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Take the fields by name."""
        return cls(**{field.name: np.asarray(arrays[field.name], np.float32) for field in fields(cls)})

    def arrays(self) -> dict[str, Floats]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def who(self, row: int, name_features: Floats) -> Floats:
        """Return what an LLM adds to the hidden layer of each network; the same for all its prompts."""
        known = self.identity[:, row] + name_features @ self.k
        return np.asarray(np.einsum("me,meh->mh", known, self.v) + self.b_bias, np.float32)

    def standardise(self, description: Floats) -> Floats:
        """Return descriptions in spreads from the centre, not yet cut."""
        return np.asarray((description - self.centre) / self.spread, np.float32)

    def outputs(self, x: Floats, who: Floats) -> Floats:
        """Return (rows, 4) of standardised descriptions (rows, width) and of `who` as (networks, rows, hidden)."""
        z = np.minimum(np.maximum(x, -CLIP), CLIP) @ self.a
        z += self.a_bias[:, None]
        np.maximum(z, 0.0, out=z)
        h = z @ self.b
        h += who
        np.maximum(h, 0.0, out=h)
        y = h @ self.c
        y += z @ self.d
        y += self.c_bias[:, None]
        return np.asarray(y[0] if len(y) == 1 else y.mean(axis=0))
