"""Why requests went where they went: what a router weighed, in columns of a run, and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from lengthwise.routers import Costs

COLUMNS = ("candidates", "terms", "costs")


@dataclass(frozen=True, eq=False)
class Reasons:
    """The engines that were weighed for each request, and their terms; None where nothing is known.

    Stored as three columns: `candidates`, engines; `terms`, names with commas between; `costs`, the terms of the first
    engine, then of the next. A router that does not weigh engines one by one tells only the one it chose.
    """

    weighed: Sequence[Costs | None]

    @classmethod
    def of(cls, costs: Mapping[str, Costs], requests: int) -> Self:
        """From what was kept by job, whose id is the number of its request."""
        return cls([costs.get(str(row)) for row in range(requests)])

    def columns(self) -> dict[str, pa.Array]:
        """As they are written."""
        engines = [None if costs is None else list(costs) for costs in self.weighed]
        names = [None if costs is None else ",".join(next(iter(costs.values()))) for costs in self.weighed]
        values = [
            None if costs is None else [value for terms in costs.values() for value in terms.values()]
            for costs in self.weighed
        ]
        return {
            "candidates": pa.array(engines, pa.list_(pa.int32())),
            "terms": pa.array(names, pa.string()).dictionary_encode(),
            "costs": pa.array(values, pa.list_(pa.float64())),
        }


def read_reasons(row: Mapping[str, Any]) -> dict[int, dict[str, float]] | None:
    """What was weighed for one request, from its row; None where nothing is known."""
    if row["candidates"] is None:
        return None
    names = row["terms"].split(",") if row["terms"] else []
    costs = np.reshape(row["costs"], (len(row["candidates"]), len(names)))
    return {
        int(engine): dict(zip(names, terms, strict=True))
        for engine, terms in zip(row["candidates"], costs.tolist(), strict=True)
    }
