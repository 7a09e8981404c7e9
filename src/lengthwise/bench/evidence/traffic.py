"""What is sent in a cell: prompts, arrivals, and the length that each answer will have.

Setting a plays a grown LLM's lengths: CASTILLO's official test prompts (six corpora, no Alpaca), and for each one of
the clean lengths that Llama-3.1-8B had, scaled to fit the machine and cut at the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.workloads import LeftOut, LengthSamples, Workload, load_castillo
from lengthwise.workloads.arrivals import generator, in_rounds, poisson
from lengthwise.workloads.castillo import PACKAGED

Count = Callable[[str], int]
"""How many tokens a text has."""

PLAYED: Final = "meta-llama/Llama-3.1-8B-Instruct"
_HELD_OUT: Final = "Alpaca"
_TEST: Final = "test"


@dataclass(frozen=True)
class Sizes:
    """What a cell is, beside its name: it cannot change within one folder of results."""

    n: int = 600
    own_n: int = 120
    """Requests of setting b, whose answers are longer."""
    own_lengths: int = 500
    """Lengths that predictors are adapted on in setting b."""
    slots: int = 4
    seed: int = 0
    scale: float = 0.15
    cap: int = 256
    longest_prompt: int = 1024

    def __post_init__(self) -> None:
        for name in ("n", "own_n", "own_lengths", "slots", "cap", "longest_prompt"):
            if getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)}", field=name, hint="give at least 1")

    def requests(self, setting: str) -> int:
        """How many requests a cell of the setting has."""
        return self.n if setting == "a" else self.own_n


@dataclass(frozen=True, eq=False)
class Traffic:
    """The requests of one repeat, the same for every policy. Arrivals are at one request a second, to be sped up."""

    prompts: Sequence[str]
    prompt_tokens: NDArray[np.int64]
    lengths: NDArray[np.int64]
    """What the answers will have; in setting b, where that is not known, the most they may."""
    arrivals: NDArray[np.float64]
    cap: int
    origin: str
    left_out: Sequence[LeftOut] = ()
    free: bool = False
    """Answers end by themselves."""
    sampling: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """Further fields of each request's body."""

    @property
    def packaged(self) -> bool:
        """Whether these are the packaged samples, for want of the full data."""
        return self.origin == PACKAGED

    def workload(self, rate: float | None) -> Workload:
        """The requests at so many a second, or all at once."""
        n = len(self.prompts)
        columns = {
            "arrival_s": np.zeros(n) if rate is None else self.arrivals / rate,
            "input_tokens": np.maximum(1, self.prompt_tokens),
            "output_tokens": self.lengths,
            "max_tokens": np.full(n, self.cap),
            "prompt": pa.array(self.prompts, pa.large_string()),
        }
        return Workload.from_table(columns, name="evidence")


def usable(
    samples: LengthSamples, count: Count | None, longest: int
) -> tuple[NDArray[np.intp], NDArray[np.int64], list[LeftOut]]:
    """The rows whose prompt is short enough and has a clean length, every row's tokens, and how many are left out.

    Without a `count` the tokens are as CASTILLO counted them for its LLM.
    """
    texts = samples.table["prompt"].to_pylist()
    if count is None:
        tokens = samples.table["input_tokens"].to_numpy()
    else:
        tokens = np.array([0 if text is None else count(text) for text in texts], np.int64)
    fits = (tokens <= longest) & np.array([text is not None for text in texts], bool)
    clean = samples.clean_mask().any(axis=1)
    rules = {
        f"prompts over {longest:,} tokens": int((~fits).sum()),
        "prompts of which every sample is degenerate": int((fits & ~clean).sum()),
    }
    left_out = [LeftOut(rule, rows) for rule, rows in rules.items() if rows]
    if not (fits & clean).any():
        raise InputError(f"no prompt of at most {longest:,} tokens", source=samples.origin, hint="allow longer ones")
    return np.flatnonzero(fits & clean), tokens, left_out


def six_corpora(samples: LengthSamples) -> LengthSamples:
    """Without Alpaca, which is held out of everything that is shipped."""
    return samples.where(corpus=[name for name in samples.corpora if name != _HELD_OUT])


def official_test() -> LengthSamples:
    """CASTILLO's official test rows of the played LLM, without Alpaca."""
    return six_corpora(load_castillo(split=_TEST)).where(llm=PLAYED)


def played_traffic(samples: LengthSamples, sizes: Sizes, repeat: int, count: Count | None) -> Traffic:
    """The traffic of setting a: prompts, lengths and arrivals each have their own stream of the repeat's seed."""
    seed, n = sizes.seed + repeat, sizes.n
    rows, tokens, left_out = usable(samples, count, sizes.longest_prompt)
    picks = rows[in_rounds(len(rows), n, generator(seed, "prompts"))]
    clean = samples.clean_mask()[picks]
    rank = np.where(clean, generator(seed, "lengths").random(clean.shape), np.inf)
    drawn = np.take_along_axis(samples.lengths_matrix()[picks], rank.argmin(axis=1)[:, None], axis=1)[:, 0]
    return Traffic(
        prompts=samples.table["prompt"].take(pa.array(picks)).to_pylist(),
        prompt_tokens=tokens[picks],
        lengths=np.clip(np.rint(drawn * sizes.scale), 1, sizes.cap).astype(np.int64),
        arrivals=poisson(n, 1.0, generator(seed, "arrivals")),
        cap=sizes.cap,
        origin=samples.origin,
        left_out=left_out,
    )
