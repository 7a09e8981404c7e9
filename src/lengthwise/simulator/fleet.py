"""Fleets of engines, parsed from text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.simulator.catalogue import find_engine
from lengthwise.simulator.spec import EngineSpec

_MOST_ENGINES: Final = 4096  # a larger fleet is a typing error


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of a cluster, in order."""

    engines: tuple[EngineSpec, ...]

    def __post_init__(self) -> None:
        if not self.engines:
            raise InputError("a fleet without engines", field="fleet", hint="for example 1*llama-3-8b@a100")

    @classmethod
    def parse(cls, text: str) -> Fleet:
        """Read "2*llama-3-8b@a100,1*engine.yaml"; "llama-3-8b@a100" is one of it."""
        engines: list[EngineSpec] = []
        for part in text.split(","):
            count, name = _count_and_name(part.strip(), text)
            if len(engines) + count > _MOST_ENGINES:
                raise InputError(f"more than {_MOST_ENGINES} engines", source=text, field="fleet")
            engines += [find_engine(name)] * count
        return cls(tuple(engines))

    def limited_to(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        kv_tokens: int | None = None,
        block_size: int | None = None,
        prefix_caching: bool | None = None,
        admission: str | None = None,
        admission_quantile: float | None = None,
    ) -> Fleet:
        """The same engines with other limits; None leaves one as it is. An unknown admission is an InputError."""
        given = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "kv_tokens": kv_tokens,
            "block_size": block_size,
            "prefix_caching": prefix_caching,
            "admission": admission,
            "admission_quantile": admission_quantile,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return Fleet(tuple(replace(engine, **changes) for engine in self.engines))

    @property
    def slots(self) -> int:
        """How many requests may run at once, all engines together."""
        return sum(engine.max_num_seqs for engine in self.engines)

    def __len__(self) -> int:
        return len(self.engines)

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for engine in self.engines:
            counts[engine.name] = counts.get(engine.name, 0) + 1
        return ",".join(f"{count}*{name}" for name, count in counts.items())


def _count_and_name(part: str, text: str) -> tuple[int, str]:
    found = re.fullmatch(r"(?:(\d+)\s*\*\s*)?([^\s*,]+)", part)
    if found is None or found[1] == "0":
        raise InputError(
            f"'{part}' is no engine", source=text, field="fleet", hint="write COUNT*MODEL@GPU, commas between"
        )
    return int(found[1] or 1), found[2]
