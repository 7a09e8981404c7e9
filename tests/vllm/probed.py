"""A probe of the tiny model whose predictions are exact, and an engine that attaches the states that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.predictors.probe import NONE, Probe, ProbeNetwork, paper_bins, write_probe
from lengthwise.vllm.refine import WORKER, StepStates, attach
from tests.vllm.overlap import Host
from tests.vllm.scheduling import make_scheduler

LLM, HIDDEN, LAYER = "SmolLM2-135M-Instruct", 16, 1
BINS = paper_bins()


def exact_probe(folder: Path, llm: str = LLM) -> Path:
    """Write a probe that reads the remaining length from the largest number of a state; return its file."""
    bins = len(BINS)
    arrays = {
        "centre": np.zeros(HIDDEN), "spread": np.ones(HIDDEN), "a": 10.0 * np.eye(HIDDEN + 2, bins),
        "a_bias": np.zeros(bins), "b": np.eye(bins), "b_bias": np.zeros(bins), "skip": np.zeros((2, bins)),
    }  # fmt: skip
    card = {"name": "exact", "data": "none", "licences": {}, "limits": []}
    path = folder / "exact.lw"
    write_probe(path, Probe(LAYER, BINS, ProbeNetwork.of(arrays), inputs=(), smoothing=NONE, llm=llm, card=card))
    return path


def states_of(remaining: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return hidden states, a row per request, that encode its remaining tokens."""
    return 4.0 * np.eye(HIDDEN, dtype=np.float32)[BINS.of(np.maximum(remaining, 0))]


@dataclass
class ProbedHost(Host):
    """Attaches a state for every scheduled request, also during chunked prefill and recomputation."""

    def attach_states(self, result: Any, requests: list[Any]) -> None:
        """Encode in each state the true remaining length after the tokens computed so far."""
        tokens = [one.num_computed_tokens for one in requests]
        remaining = [one.num_prompt_tokens + one.max_tokens - seen for one, seen in zip(requests, tokens, strict=True)]
        names = tuple(one.request_id for one in requests)
        attach(result, StepStates(names, tuple(tokens), {LAYER: states_of(remaining)}))


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
    """An engine whose predictions the probe refines, or the same engine without a probe."""
    options = {
        "predictor": "none",
        "measuring": {**(measuring or {}), **({} if probe is None else {"probe": str(probe)})},
    }
    made = make_scheduler(cls, model, policy=policy, worker=WORKER, **{"slots": 1, **options, **limits})
    return ProbedHost(made, depth)
