"""What `lengthwise`, the policy, gains and what it costs: `python -m benchmarks.ours [--seeds 20] [--json]`.

One engine of 8 slots (Llama-3-8B on an A100, simulated), CASTILLO's lengths of Llama-3.1-8B cut at 4,096, Poisson,
n = 2,000 to drain, loads of the capacity under backlog, the same arrivals, lengths and beliefs for every policy of a
seed. Ratios: FCFS over the policy for means (above 1 is better), the policy over FCFS for the p99 of E2E; 95 %
intervals over seeds.

Beside it: shortest first, TIE, and shortest first aged at many fixed rates (e-folds of the score per so many mean
answers' time), the curve that `lengthwise` is to lie above. Then the share of the true-length gain that it keeps with
the shipped predictors, on CASTILLO's test prompts.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.simulator import Fleet, believe, measure_capacity, simulate
from lengthwise.workloads import castillo_workload, load_castillo

if TYPE_CHECKING:
    from lengthwise.simulator import Outcome
    from lengthwise.workloads import LengthSamples, Workload

LLM = "llama-3.1-8b"
LOADS = (0.7, 0.9, 1.1)
AGES = (1, 2, 3, 5, 8, 13, 21, 40)
N, SLOTS, CUT = 2000, 8, 4096
FLEET = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=SLOTS)


def traffic(samples: LengthSamples, seed: int, load: float) -> Workload:
    """The requests of a seed at a load of their own capacity."""
    drawn = castillo_workload(samples, LLM, requests=N, rate=1.0, seed=seed, max_tokens=CUT)
    rate = load * measure_capacity(drawn, FLEET).requests_per_s
    return drawn.replace(arrival_s=drawn.arrival_s / rate)


def latencies(outcome: Outcome) -> tuple[float, float, float]:
    """Mean E2E, mean per-token latency, p99 of E2E."""
    e2e = outcome.finish - outcome.arrival
    return float(e2e.mean()), float((e2e / outcome.output_tokens).mean()), float(np.quantile(e2e, 0.99))


def policies(mean_s: float) -> dict[str, str]:
    """The policies by what they are called here."""
    aged = {f"aged {age}": f"tie:beta=0,gamma={math.exp(-1):.6f},tau={age * mean_s:.6f}" for age in AGES}
    return {"lengthwise": "lengthwise", "sjf": "sjf", "tie": "tie", **aged}


def compare(samples: LengthSamples, load: float, seeds: int, predictor: str) -> dict[str, Any]:
    """Ratios to FCFS of every policy, a row per seed."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    tau = []
    for seed in range(seeds):
        requests = traffic(samples, seed, load)
        beliefs = believe(requests, predictor, seed=seed)
        tau.append(beliefs.tau)
        base = latencies(simulate(requests, FLEET, "fcfs", predictor=beliefs))
        alone = simulate(requests.replace(arrival_s=1e6 * np.arange(N)), FLEET, "fcfs", predictor="none")
        for name, spec in policies(float((alone.finish - alone.arrival).mean())).items():
            mean, token, tail = latencies(simulate(requests, FLEET, spec, predictor=beliefs))
            rows.setdefault(name, []).append((base[0] / mean, base[1] / token, tail / base[2]))
    return {"tau": float(np.mean(tau)), "policies": {name: summary(np.array(each)) for name, each in rows.items()}}


def summary(rows: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """Mean and 95 % interval of each ratio."""
    half = 1.96 * rows.std(axis=0, ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else rows.mean(axis=0) * math.nan
    named = zip(("mean_e2e", "per_token", "p99_e2e"), rows.mean(axis=0), half, strict=True)
    return {name: [float(mid), float(mid - h), float(mid + h)] for name, mid, h in named}


def captured(samples: LengthSamples, seeds: int, predictor: str) -> dict[str, dict[str, float]]:
    """The share of the true-length gain that the policy keeps with a predictor (DESIGN.md's definition), by load."""
    gains: dict[str, dict[str, list[float]]] = {str(load): {"mean_e2e": [], "per_token": []} for load in LOADS[1:]}
    taus = []
    for seed in range(seeds):
        beliefs = believe(traffic(samples, seed, 1.0), predictor)  # prompts do not depend on the load
        taus.append(beliefs.tau)
        for load in LOADS[1:]:
            requests = traffic(samples, seed, load)
            base = latencies(simulate(requests, FLEET, "fcfs", predictor="oracle"))
            told = latencies(simulate(requests, FLEET, "lengthwise", predictor=beliefs))
            true = latencies(simulate(requests, FLEET, "lengthwise", predictor="oracle"))
            for place, each in enumerate(gains[str(load)].values()):
                each.append((base[place] - told[place]) / (base[place] - true[place]))
    tau = {"tau": float(np.mean(taus))}
    return {load: {name: float(np.mean(each)) for name, each in row.items()} | tau for load, row in gains.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--predictor", default="noisy:0.55")
    parser.add_argument("--shipped", default="fast,default", help="predictors to count the kept gain of; empty: none")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    everything, test = load_castillo(), load_castillo(split="test")
    found: dict[str, Any] = {str(load): compare(everything, load, asked.seeds, asked.predictor) for load in LOADS}
    kept = {name: captured(test, min(asked.seeds, 5), name) for name in filter(None, asked.shipped.split(","))}
    if asked.json:
        print(json.dumps({"ratios": found, "captured": kept}))
        return
    for load, result in found.items():
        print(f"load {load}, n {N}, {SLOTS} slots, {asked.seeds} seeds, {asked.predictor} (tau {result['tau']:.3f})")
        for name, ratios in result["policies"].items():
            said = "  ".join(f"{key} {mid:.3f} ({low:.3f} to {high:.3f})" for key, (mid, low, high) in ratios.items())
            print(f"  {name:12} {said}")
    for name, loads in kept.items():
        for load, shares in loads.items():
            share = ", ".join(f"{key} {value:.2f}" for key, value in shares.items())
            print(f"true-length gain kept with {name}, load {load}, CASTILLO's test prompts: {share}")


if __name__ == "__main__":
    main()
