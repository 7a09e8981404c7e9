"""Synthetic hidden states whose first number is the logarithm of the remaining tokens."""

from __future__ import annotations

import numpy as np

from lengthwise.training.probe.states import States


def made_states(prompts: int = 120, width: int = 6, seed: int = 0) -> States:
    """Return states of answers of 5 to 300 tokens, capped at 200: layer 2 is informative, layer 1 is noise."""
    rng = np.random.default_rng(seed)
    prompt, generated, remaining, capped = [], [], [], []
    for number in range(prompts):
        length = int(rng.integers(5, 300))
        for age in range(0, min(length, 200), 16):
            prompt.append(number)
            generated.append(age)
            remaining.append(min(length, 200) - age)
            capped.append(length > 200)
    rem = np.array(remaining, np.float64)
    noise = rng.standard_normal((2, len(rem), width)).astype(np.float16)
    noise[1, :, 0] = np.log(rem)
    numbers = np.array(prompt, np.int64)
    return States(
        answer=numbers,
        draw=rng.random(prompts)[numbers],
        generated=np.array(generated, np.int64),
        remaining=np.array(remaining, np.int64),
        capped=np.array(capped),
        held_out=numbers % 5 == 0,
        layers={1: noise[0], 2: noise[1]},
        entropy=None,
        corpus=np.where(numbers % 7 == 0, "Alpaca", "Mbpp").astype(object),
        split=np.where(numbers % 11 == 0, "test", "train").astype(object),
        mu=np.full(len(rem), np.log(120.0)),
        sigma=np.full(len(rem), 0.8),
        nu=3.5,
    )
