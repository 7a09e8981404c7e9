"""Weights of a small network in NumPy: arrays that are its fields, kept in files by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Weights:
    """A network states its arrays as fields; each is held in 32 bits."""

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Take the fields by name."""
        return cls(**{field.name: np.asarray(arrays[field.name], np.float32) for field in fields(cls)})

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
