"""What prefix memory predicts: `python -m benchmarks.prefix_memory`.

Kendall's tau of the predicted medians with the lengths. On mooncake_conversation (LENGTHWISE_DATA) by the number of
blocks of a prompt that an earlier request had, with lengths visible a second and 30 ms per token after arrival. On
sessions of CASTILLO's test prompts and on Preble's ReAct prompts, whose lengths are random, prefixes say nothing: the
difference to the text predictor without memory, calibrated online as in a host, with a 95 % interval (bootstrap over
requests, paired).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from benchmarks import options
from lengthwise.intervals import draw_rows, interval
from lengthwise.reports.tables import Table, print_tables
from lengthwise.simulator import RequestPredictions, predict_workload
from lengthwise.workloads import Workload, castillo_workload, load_castillo, load_trace
from lengthwise.workloads.generators import DiscreteLengths, into_sessions, react_workload

LLMS = ("llama-3.1-8b", "qwen2.5-7b")
_RESAMPLES = 200


def seen_blocks(workload: Workload) -> NDArray[np.int64]:
    """Return the number of leading blocks of each request that an earlier one has."""
    seen: set[int] = set()
    depths = np.zeros(len(workload), np.int64)
    for row in range(len(workload)):
        blocks = workload.blocks(row).tolist()
        depths[row] = next((depth for depth, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(blocks)
    return depths


def tau(predictions: RequestPredictions, rows: NDArray[np.integer] | slice = slice(None)) -> float:
    return float(kendalltau(predictions.mu[rows], predictions.truth[rows]).statistic)


def by_depth() -> Table:
    workload = load_trace("mooncake_conversation")
    depths = seen_blocks(workload)
    groups = {"all": depths >= 0, "1": depths == 1, "2 or more": depths >= 2}
    found = {name: predict_workload(workload, name) for name in ("history", "memory")}
    rows = [
        (group, f"{chosen.mean():.0%}", *(f"{tau(each, np.flatnonzero(chosen)):.3f}" for each in found.values()))
        for group, chosen in groups.items()
    ]
    return Table("mooncake_conversation, tau", ("blocks seen before", "requests", *found), rows)


def beside_text(workloads: dict[str, Workload], text: str) -> Table:
    rng = np.random.default_rng(0)
    rows = []
    for name, workload in workloads.items():
        bare = workload.replace(block_hashes=None, tenant=None, session=None)
        found = {text: predict_workload(workload, text)}
        found["calibrated"] = alone = predict_workload(bare, f"memory+{text}")
        found["with memory"] = both = predict_workload(workload, f"memory+{text}")
        resamples = draw_rows(len(workload), seed=rng, resamples=_RESAMPLES)
        low, high = interval([tau(both, rows) - tau(alone, rows) for rows in resamples])
        gain = tau(both) - tau(alone)
        rows.append((name, *(f"{tau(each):.3f}" for each in found.values()), f"{gain:+.4f} [{low:+.4f}, {high:+.4f}]"))
    head = ("workload", text, "calibrated online", "with memory", "difference to calibrated")
    return Table("Where prefixes say nothing, tau", head, rows)


def main() -> None:
    given = options(__doc__, text="fast", requests=3000)
    samples = load_castillo(split="test")
    workloads = {}
    for llm in LLMS:
        plain = castillo_workload(samples, llm, requests=given.requests, rate=2.0, seed=0)
        workloads[f"CASTILLO in sessions of 4 turns, {llm}"] = into_sessions(plain, turns=4.0, think_s=30.0, seed=0)
    workloads["ReAct"] = react_workload(
        requests=given.requests, rate=2.0, lengths=DiscreteLengths.parse("1:0.5,300:0.5"), seed=0
    )
    print_tables([by_depth(), beside_text(workloads, given.text)])


if __name__ == "__main__":
    main()
