"""Gain and cost of the policy `lengthwise`: `python -m benchmarks.ours [--seeds 20]`.

One engine of 8 slots (Llama-3-8B on an A100, simulated), CASTILLO's lengths of Llama-3.1-8B cut at 4,096, Poisson,
n = 2,000 to drain, loads of the capacity under backlog, the same arrivals, lengths and predictions for every policy
of a seed. Ratios: FCFS over the policy for means (above 1 is better), the policy over FCFS for the p99 of E2E; 95 %
intervals over seeds.

Compared with SJF, TIE, and SJF aged at several fixed rates (an e-fold of the score per 1 to 40 mean answer times), a
curve that `lengthwise` should lie above. Then, on CASTILLO's test prompts, the share of the true-length gain that it
keeps with the shipped predictors and with `ceiling` (the mean of the prompt's other answers, the best that a prompt can
predict), and the gain by length of the answer.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from lengthwise.simulator import Fleet, Outcome, RequestPredictions, measure_capacity, predict_workload, simulate
from lengthwise.workloads import LengthSamples, Workload, castillo_workload, load_castillo

LLM = "llama-3.1-8b"
LOADS = (0.7, 0.9, 1.1)
AGES = (1, 2, 3, 5, 8, 13, 21, 40)
N, SLOTS, CUT = 2000, 8, 4096
BANDS = (1, 100, 300, 600, CUT + 1)
FLEET = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=SLOTS)


def traffic(samples: LengthSamples, seed: int, load: float) -> Workload:
    """Return the requests of a seed at a load relative to the capacity for them."""
    drawn = castillo_workload(samples, LLM, requests=N, rate=1.0, seed=seed, max_tokens=CUT)
    rate = load * measure_capacity(drawn, FLEET).requests_per_s
    return drawn.replace(arrival_s=drawn.arrival_s / rate)


def latencies(outcome: Outcome) -> tuple[float, float, float]:
    """Return mean E2E, mean per-token latency and p99 of E2E."""
    e2e = outcome.finish - outcome.arrival
    return float(e2e.mean()), float((e2e / outcome.output_tokens).mean()), float(np.quantile(e2e, 0.99))


def policies(mean_s: float) -> dict[str, str]:
    """Return the specs of the policies by label."""
    aged = {f"aged {age}": f"tie:beta=0,gamma={math.exp(-1):.6f},tau={age * mean_s:.6f}" for age in AGES}
    return {"lengthwise": "lengthwise", "sjf": "sjf", "tie": "tie", **aged}


def compare(samples: LengthSamples, load: float, seeds: int, predictor: str) -> dict[str, Any]:
    """Compute the ratios to FCFS of every policy over the seeds."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    tau = []
    for seed in range(seeds):
        requests = traffic(samples, seed, load)
        predictions = predict_workload(requests, predictor, seed=seed)
        tau.append(predictions.tau)
        base = latencies(simulate(requests, FLEET, "fcfs", predictor=predictions))
        alone = simulate(requests.replace(arrival_s=1e6 * np.arange(N)), FLEET, "fcfs", predictor="none")
        for name, spec in policies(float((alone.finish - alone.arrival).mean())).items():
            mean, token, tail = latencies(simulate(requests, FLEET, spec, predictor=predictions))
            rows.setdefault(name, []).append((base[0] / mean, base[1] / token, tail / base[2]))
    return {"tau": float(np.mean(tau)), "policies": {name: summary(np.array(each)) for name, each in rows.items()}}


def summary(rows: np.ndarray[Any, Any]) -> dict[str, list[float]]:
    """Return mean and 95 % interval of each ratio."""
    half = 1.96 * rows.std(axis=0, ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else rows.mean(axis=0) * math.nan
    named = zip(("mean_e2e", "per_token", "p99_e2e"), rows.mean(axis=0), half, strict=True)
    return {name: [float(mid), float(mid - h), float(mid + h)] for name, mid, h in named}


def other_answers(samples: LengthSamples, seed: int) -> RequestPredictions:
    """Predict for each request of a seed the mean of the prompt's other clean answers."""
    drawn = castillo_workload(samples, LLM, requests=N, rate=1.0, seed=seed)
    rows = samples.where(llm=LLM)
    answers = dict(zip(rows.table["prompt"].to_pylist(), rows.clean_mask().sum(axis=1).tolist(), strict=True))
    count = np.array([answers[prompt] for prompt in drawn.table["prompt"].to_pylist()])
    others = (count * drawn.sample_mean - drawn.output_tokens) / np.maximum(count - 1, 1)
    others = np.where(count > 1, others, drawn.sample_mean.mean())
    return replace(
        predict_workload(drawn.limited_to(CUT), "noisy:1"), predictor="ceiling", mu=np.log(np.clip(others, 1, CUT))
    )


def captured(samples: LengthSamples, seeds: int, predictor: str) -> dict[str, Any]:
    """Return the share of the true-length gain that the policy keeps with a predictor, by load."""
    found: dict[str, dict[str, list[Any]]] = {
        str(load): {name: [] for name in ("mean_e2e", "per_token", "p99_e2e", "tau", "saved_s", "saved_s_if_true")}
        for load in LOADS[1:]
    }
    first = traffic(samples, 0, 1.0)  # has every prompt: a predictor reads nothing else
    model = None if predictor == "ceiling" else predict_workload(first, predictor)
    place = {prompt: row for row, prompt in enumerate(first.table["prompt"].to_pylist())}
    for seed in range(seeds):
        predictions = other_answers(samples, seed)
        if model is not None:
            prompts = castillo_workload(samples, LLM, requests=N, rate=1.0, seed=seed).table["prompt"].to_pylist()
            known = model.take(np.array([place[prompt] for prompt in prompts]))
            predictions = replace(predictions, predictor=predictor, mu=known.mu, sigma=known.sigma)
        for load in LOADS[1:]:  # predictions do not depend on the load
            requests = traffic(samples, seed, load)
            runs = [
                simulate(requests, FLEET, policy, predictor=known)
                for policy, known in (("fcfs", "oracle"), ("lengthwise", predictions), ("lengthwise", "oracle"))
            ]
            base, predicted, true = (latencies(run) for run in runs)
            row = found[str(load)]
            row["mean_e2e"].append((base[0] - predicted[0]) / (base[0] - true[0]))
            row["per_token"].append((base[1] - predicted[1]) / (base[1] - true[1]))
            row["p99_e2e"].append(predicted[2] / base[2])
            row["tau"].append(predictions.tau)
            row["saved_s"].append(saved(runs[0], runs[1]))
            row["saved_s_if_true"].append(saved(runs[0], runs[2]))
    return {load: {name: np.mean(each, axis=0).tolist() for name, each in row.items()} for load, row in found.items()}


def saved(base: Outcome, other: Outcome) -> list[float]:
    """Return the seconds of mean E2E that each band of true lengths saves; they add up to the gain in the mean."""
    gain = (base.finish - other.finish) / len(base.finish)
    return [
        float(gain[(base.output_tokens >= low) & (base.output_tokens < high)].sum()) for low, high in pairwise(BANDS)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--predictor", default="noisy:0.55")
    parser.add_argument(
        "--shipped", default="fast,default,ceiling", help="predictors for which to compute the share of the gain"
    )
    asked = parser.parse_args()
    everything, test = load_castillo(), load_castillo(split="test")
    found: dict[str, Any] = {str(load): compare(everything, load, asked.seeds, asked.predictor) for load in LOADS}
    kept = {name: captured(test, min(asked.seeds, 5), name) for name in filter(None, asked.shipped.split(","))}
    for load, result in found.items():
        print(f"load {load}, n {N}, {SLOTS} slots, {asked.seeds} seeds, {asked.predictor} (tau {result['tau']:.3f})")
        for name, ratios in result["policies"].items():
            text = "  ".join(f"{key} {mid:.3f} ({low:.3f} to {high:.3f})" for key, (mid, low, high) in ratios.items())
            print(f"  {name:12} {text}")
    for name, loads in kept.items():
        for load, row in loads.items():
            print(
                f"true-length gain kept with {name} (tau {row['tau']:.3f}), load {load}, CASTILLO's test prompts: "
                f"mean E2E {row['mean_e2e']:.2f}, per token {row['per_token']:.2f} (p99 {row['p99_e2e']:.3f} of FCFS)"
            )
            bands = zip(pairwise(BANDS), row["saved_s"], row["saved_s_if_true"], strict=True)
            each = [f"{low} to {high - 1} tokens {saving:.2f} of {true:.2f} s" for (low, high), saving, true in bands]
            print(f"  saved of the mean E2E by answers of {'; '.join(each)}")


if __name__ == "__main__":
    main()
