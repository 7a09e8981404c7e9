"""Prefill and decode on different engines: how many of each, and the link that KV goes over."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.simulator.fleet import Fleet


@dataclass(frozen=True, slots=True)
class KvLink:
    """What carries KV from one engine to another: seconds = latency_s + bytes / (1e9 * gb_per_s).

    The default is a port of 200 Gbit/s for each engine, and a millisecond to set a transfer up and to tell its end.
    """

    gb_per_s: float = 25.0
    latency_s: float = 1e-3

    def __post_init__(self) -> None:
        if not self.gb_per_s > 0:
            raise InputError(
                f"{self.gb_per_s:g} GB/s", field="kv-link", hint="give a number above 0; inf costs nothing"
            )
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InputError(f"a latency of {self.latency_s} s", field="kv-latency", hint="a number of at least 0")


@dataclass(frozen=True, slots=True)
class Pools:
    """So many engines of a fleet, the first in its order, compute prompts; the others decode.

    `decode_router` chooses among these; None: the same kind of router as among the first.
    """

    prefill: int
    decode: int
    link: KvLink = field(default_factory=KvLink)
    decode_router: str | None = None

    def __post_init__(self) -> None:
        if self.prefill < 1 or self.decode < 1:
            raise InputError(
                f"{self.prefill}:{self.decode}",
                field="disaggregate",
                hint="each pool needs an engine, as in 2:6; engines that do both are what there is without this option",
            )

    @classmethod
    def parse(cls, text: str, *, link: KvLink | None = None, decode_router: str | None = None) -> Pools:
        """Read "2:6"."""
        found = re.fullmatch(r"\s*(\d{1,6})\s*:\s*(\d{1,6})\s*", text)
        if found is None:
            raise InputError(f"'{text}'", field="disaggregate", hint="write PREFILL:DECODE, engines of each, as in 2:6")
        return cls(int(found[1]), int(found[2]), KvLink() if link is None else link, decode_router)

    def of(self, fleet: Fleet) -> tuple[Fleet, Fleet]:
        """The two pools."""
        if self.prefill + self.decode != len(fleet):
            raise InputError(
                f"{self} are {self.prefill + self.decode} engines of a fleet of {len(fleet)}",
                field="disaggregate",
                hint=f"let both add up to {len(fleet)}",
            )
        return Fleet(fleet.engines[: self.prefill]), Fleet(fleet.engines[self.prefill :])

    def token_s(self, fleet: Fleet) -> float:
        """Seconds that the KV of one token is on its way, latency aside; all engines must hold the same KV."""
        sizes = {spec.kv_bytes_per_token for spec in fleet.engines}
        size = sizes.pop()
        if sizes:
            raise InputError(
                "engines whose tokens differ in bytes of KV cannot take over from each other",
                field="fleet",
                hint="take one model for all",
            )
        if size is None:
            raise InputError(
                "does not say how large a token's KV is",
                source=fleet.engines[0].name,
                field="kv_bytes_per_token",
                hint="K and V of all layers in bytes, for example 131072",
            )
        return size / (1e9 * self.link.gb_per_s)

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"


class Transfers:
    """The ports of all engines: each sends, and each takes in, one request's KV at a time, in the order of asking."""

    def __init__(self, pools: Pools, token_s: float) -> None:
        self._token_s, self._latency_s = token_s, pools.link.latency_s
        self._sends: NDArray[np.float64] = np.zeros(pools.prefill)
        self._takes: NDArray[np.float64] = np.zeros(pools.decode)

    def send(self, source: int, target: int, tokens: int, now: float) -> float:
        """When so many tokens, ready to go now, have come; never before what was sent there earlier."""
        begins = max(now, self._sends[source], self._takes[target])
        self._sends[source] = self._takes[target] = begins + tokens * self._token_s
        return float(self._takes[target] + self._latency_s)
