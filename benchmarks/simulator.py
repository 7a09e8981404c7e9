"""Requests simulated per CPU second: 10,000 requests of Azure's conversation lengths, 8 engines, FCFS.

    LENGTHWISE_DATA=... python -m benchmarks.simulator

CPU time of the simulation alone, the making of jobs included, loading of the file not; best of three. The same
with every step taken singly shows what jumping over uneventful steps is worth.
"""

from __future__ import annotations

import time

import numpy as np

from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.workloads import Workload, load_trace

REQUESTS = 10_000
FLEET = "8*llama-3-8b@a100"
ROUNDS = 3


def timed(workload: Workload, policy: str, *, jump: bool) -> tuple[Outcome, float]:
    began = time.process_time()
    outcome = simulate(workload, Fleet.parse(FLEET), policy, jump=jump)
    return outcome, time.process_time() - began


def main() -> None:
    workload = load_trace("conv_r8_n100000").head(REQUESTS)
    print(f"{len(workload):,} requests of {workload.name} at {workload.rate:.1f}/s, {FLEET}")
    outcomes = {}
    for policy, jump, rounds in (
        ("fcfs", True, ROUNDS),
        ("sjf", True, ROUNDS),
        ("fcfs", False, 1),
    ):
        runs = [timed(workload, policy, jump=jump) for _ in range(rounds)]
        outcomes[policy, jump] = runs[0][0]
        seconds = min(took for _, took in runs)
        label = f"{policy}{'' if jump else ', every step singly'}"
        print(f"{label:<26}{seconds:>7.2f} CPU s{REQUESTS / seconds:>10,.0f} requests per CPU s")
    assert np.array_equal(outcomes["fcfs", True].finish, outcomes["fcfs", False].finish)


if __name__ == "__main__":
    main()
