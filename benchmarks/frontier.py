"""Mean against tail of the policies: `python -m benchmarks.frontier [--seeds 20] [--predictor noisy:0.55]`.

One simulated engine (Llama-3-8B on an A100), CASTILLO's lengths of Llama-3.1-8B cut at 4,096, to drain; the same
arrivals, lengths and predictions for every policy of a seed. Ratios: FCFS over the policy for mean and per-token
latency, the policy over FCFS for p99 and maximum of E2E; 95 % intervals over seeds. `slo given` has a target of 1.05
times the p99 of FCFS.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from lengthwise.simulator import Fleet, Outcome, measure_capacity, predict_workload, simulate
from lengthwise.workloads import LengthSamples, Workload, castillo_workload, load_castillo

SETTINGS = {
    "4 slots, load 1.1": (4, 1.1, 600, 1.0),
    "8 slots, load 1.1": (8, 1.1, 2000, 1.0),
    "32 slots, load 1.1": (32, 1.1, 2000, 1.0),
    "64 slots, load 1.3": (64, 1.3, 4000, 1.0),
    "8 slots, load 0.9, CV 2": (8, 0.9, 2000, 2.0),
    "8 slots, load 0.7": (8, 0.7, 2000, 1.0),
}
"""Slots, load, requests, and the coefficient of variation of the gaps between arrivals."""
POLICIES = {"lengthwise": "lengthwise", "slo given": "slo:seconds={}", "slo": "slo", "sjf": "sjf", "tie": "tie"}


def traffic(samples: LengthSamples, fleet: Fleet, setting: str, seed: int) -> Workload:
    """Return the requests of a seed."""
    _, load, n, variation = SETTINGS[setting]
    drawn = castillo_workload(samples, "llama-3.1-8b", requests=n, rate=1.0, seed=seed, max_tokens=4096)
    arrivals = drawn.arrival_s
    if variation != 1.0:
        shape = variation**-2
        arrivals = np.cumsum(np.random.default_rng(seed + 77).gamma(shape, 1.0 / shape, n))
    return drawn.replace(arrival_s=arrivals / (load * measure_capacity(drawn, fleet).requests_per_s))


def latencies(outcome: Outcome) -> NDArray[np.float64]:
    """Return mean, mean per token, p99 and maximum of E2E."""
    e2e = outcome.finish - outcome.arrival
    return np.array([e2e.mean(), (e2e / outcome.output_tokens).mean(), np.quantile(e2e, 0.99), e2e.max()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=200)
    parser.add_argument("--predictor", default="noisy:0.55")
    arguments = parser.parse_args()
    samples = load_castillo()
    for setting, (slots, *_) in SETTINGS.items():
        fleet = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=slots)
        rows: dict[str, list[NDArray[np.float64]]] = {name: [] for name in POLICIES}
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            requests = traffic(samples, fleet, setting, seed)
            predictions = predict_workload(requests, arguments.predictor, seed=seed)
            base = latencies(simulate(requests, fleet, "fcfs", predictor=predictions))
            for name, spec in POLICIES.items():
                chosen = spec.format(f"{1.05 * base[2]:.6f}")
                ours = latencies(simulate(requests, fleet, chosen, predictor=predictions))
                rows[name].append(np.concatenate([base[:2] / ours[:2], ours[2:] / base[2:]]))
        for name, each in rows.items():
            found = np.array(each)
            half = 1.96 * found.std(axis=0, ddof=1) / math.sqrt(len(found)) if len(found) > 1 else found[0] * math.nan
            figures = "  ".join(f"{mid:.3f} ±{h:.3f}" for mid, h in zip(found.mean(axis=0), half, strict=True))
            print(f"{setting:26}{name:14}{figures}", flush=True)


if __name__ == "__main__":
    main()
