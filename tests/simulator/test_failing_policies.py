"""A policy that raises, or whose key is not a number, ends a simulation with an InputError that names it."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator import Fleet, simulate
from tests.policies.raising import CALLS, raising
from tests.simulator.builders import UNEVEN, engine, requests

COMPILED: Final = [call for call in (*CALLS, "select") if call not in ("key", "level")]
"""What the compiled engine calls: keys by columns, and no level of a policy whose keys change with time."""


@pytest.mark.parametrize(
    ("call", "readable"), [*((call, False) for call in COMPILED), *((call, True) for call in (*CALLS, "select"))]
)
def test_a_policy_that_fails_ends_the_simulation_with_an_error_that_names_it(call: str, readable: bool) -> None:
    rng, n = np.random.default_rng(0), 40
    sizes = list(zip(rng.integers(1, 30, n).tolist(), rng.integers(1, 60, n).tolist(), strict=True))
    workload = requests(sizes, np.sort(rng.uniform(0, 1, n)).tolist())
    policy = raising(call, after=0 if call == "rounds" else 2)
    with pytest.raises(InputError, match="keys are numbers") as caught:
        simulate(
            workload, Fleet((engine(UNEVEN, seqs=6, blocks=30),)), policy, predictor="noisy:0.6",
            prediction_delay_s=0.05, accelerate=False if readable else None,
        )  # fmt: skip
    assert policy.name in str(caught.value)
    assert "\n" not in str(caught.value)
