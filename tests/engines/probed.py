"""A probe that is always right, of the tiny model that tests schedule without, and an engine that hands it states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.engines.refine import WORKER, StepStates, attach
from lengthwise.predictors.probe import NONE, Probe, ProbeNetwork, paper_bins, write_probe
from tests.engines.overlap import Host
from tests.engines.scheduling import make_scheduler

LLM, HIDDEN, LAYER = "SmolLM2-135M-Instruct", 16, 1
BINS = paper_bins()


def knowing(folder: Path, llm: str = LLM) -> Path:
    """The file of a probe of states whose largest number stands at the bin of what remains."""
    bins = len(BINS)
    arrays = {
        "centre": np.zeros(HIDDEN), "spread": np.ones(HIDDEN), "a": 10.0 * np.eye(HIDDEN + 2, bins),
        "a_bias": np.zeros(bins), "b": np.eye(bins), "b_bias": np.zeros(bins), "skip": np.zeros((2, bins)),
    }  # fmt: skip
    card = {"name": "knowing", "data": "none", "licences": {}, "limits": []}
    path = folder / "knowing.lw"
    write_probe(path, Probe(LAYER, BINS, ProbeNetwork.of(arrays), inputs=(), smoothing=NONE, llm=llm, card=card))
    return path


def states_of(remaining: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows that say how much remains."""
    return 4.0 * np.eye(HIDDEN, dtype=np.float32)[BINS.of(np.maximum(remaining, 0))]


@dataclass
class ProbedHost(Host):
    """States of every request that is computed, also of pieces of prompts and of what is computed again."""

    def tell(self, result: Any, requests: list[Any]) -> None:
        """Each state says what truly remains after the tokens that it has seen."""
        tokens = [one.num_computed_tokens for one in requests]
        left = [one.num_prompt_tokens + one.max_tokens - seen for one, seen in zip(requests, tokens, strict=True)]
        names = tuple(one.request_id for one in requests)
        attach(result, StepStates(names, tuple(tokens), {LAYER: states_of(left)}))


def probed_host(
    cls: type[Any],
    model: Path,
    probe: Path | None,
    policy: str = "srpt:c=0.8",
    *,
    depth: int = 1,
    measuring: dict[str, Any] | None = None,
    **limits: Any,
) -> ProbedHost:
    """An engine whose predictions the probe refines; without one, the same engine."""
    options = {
        "predictor": "none",
        "measuring": {**(measuring or {}), **({} if probe is None else {"probe": str(probe)})},
    }
    made = make_scheduler(cls, model, policy=policy, worker=WORKER, **{"slots": 1, **options, **limits})
    return ProbedHost(made, depth)
