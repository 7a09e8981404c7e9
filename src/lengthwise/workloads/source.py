"""Named workloads of a simulation (`castillo`, a trace, a file), drawn for each seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from lengthwise.errors import InputError
from lengthwise.workloads import Workload, castillo_workload, load_castillo, load_trace, redraw, replay
from lengthwise.workloads.castillo import PACKAGED

CASTILLO: Final = "castillo"
_CASTILLO_REQUESTS: Final = 1000
_REQUESTS_PER_SLOT: Final = 20  # with fewer no queue forms, even above capacity
_SAMPLE_ONLY: Final = "LENGTHWISE_DATA holds no CASTILLO; using the small sample that ships with the package"


@dataclass(frozen=True, slots=True)
class Source:
    """A workload by name: `castillo`, a trace or a file, with the number of requests and the CV of arrivals."""

    name: str
    llm: str = "llama-3.1-8b"
    requests: int | None = None
    cv: float | None = None

    def draws(
        self,
        *,
        own_arrivals: bool,
        slots: int,
        repeats: bool = False,
        on_note: Callable[[str], None] | None = None,
    ) -> Callable[[int], Workload]:
        """Return a function from seed to workload, at one request per second unless the arrivals of the trace are kept.

        The default number of requests grows with `slots`. `repeats`: workloads of different seeds must differ.
        """
        if self.name == CASTILLO:
            return self._castillo(own_arrivals, slots, on_note)
        if get_close_matches(self.name, [CASTILLO], cutoff=0.8) and not Path(self.name).exists():
            raise InputError(f"no workload is called '{self.name}'", hint=f"did you mean {CASTILLO}?")
        # A table of lengths alone is read as a batch; missing arrivals are reported below.
        workload = load_trace(self.name, need_arrivals=False)
        if self.cv is None and workload.has_arrivals:
            if repeats:
                raise InputError(
                    "a trace that is replayed is the same with every seed",
                    source=self.name,
                    field="seeds",
                    hint="draw its requests and arrivals at random with --cv 1",
                )
            replayed = replay(workload, requests=self.requests, rate=None if own_arrivals else 1.0)
            return lambda _: replayed
        self._check_arrivals(own_arrivals, redrawn=workload.has_arrivals)
        n = len(workload) if self.requests is None else self.requests
        cv = 1.0 if self.cv is None else self.cv
        return lambda seed: redraw(workload, requests=n, rate=1.0, seed=seed, cv=cv)

    def _castillo(
        self, own_arrivals: bool, slots: int, on_note: Callable[[str], None] | None
    ) -> Callable[[int], Workload]:
        self._check_arrivals(own_arrivals)
        samples = load_castillo(split="test")
        n = max(_CASTILLO_REQUESTS, _REQUESTS_PER_SLOT * slots) if self.requests is None else self.requests
        cv = 1.0 if self.cv is None else self.cv
        notes = [_SAMPLE_ONLY] if samples.origin == PACKAGED and on_note is not None else []

        def draw(seed: int) -> Workload:
            workload = castillo_workload(samples, self.llm, requests=n, rate=1.0, seed=seed, cv=cv)
            if notes and on_note is not None:  # once, and only if the workload could be drawn
                on_note(notes.pop())
            return workload

        return draw

    def _check_arrivals(self, own_arrivals: bool, *, redrawn: bool = False) -> None:
        if own_arrivals:
            what = "drawn arrivals need a rate" if redrawn else "has no arrivals of its own"
            raise InputError(what, source=self.name, hint="give --rate or --load")
