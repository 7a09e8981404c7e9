"""CPU time to load and to write a trace of 100,000 requests, by format.

    python -m benchmarks.workloads

The trace is generated: Poisson arrivals, log-normal lengths, and conversations whose 512-token block ids grow
from turn to turn (about 24 per request, as in Mooncake's trace). CPU seconds of all threads, best of three.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import cpu_microseconds
from lengthwise.workloads import Workload, read_workload, write_workload
from lengthwise.workloads.arrivals import poisson
from lengthwise.workloads.blocks import stream_block_lists

REQUESTS = 100_000
LIMIT_S = 1.0


def generated_trace(n: int, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    input_tokens = np.clip(rng.lognormal(9.0, 0.9, n), 1, 120_000).astype(np.int64)
    streams = rng.integers(0, n // 4, n)
    return Workload.from_table(
        {
            "arrival_s": poisson(n, 40.0, rng),
            "input_tokens": input_tokens,
            "output_tokens": np.clip(rng.lognormal(5.3, 0.9, n), 1, 8_000).astype(np.int64),
            "block_hashes": stream_block_lists(streams, input_tokens // 512),
        },
        name="generated",
        block_size=512,
    )


def main() -> None:
    trace = generated_trace(REQUESTS)
    blocks = len(trace.block_values) / len(trace)
    print(f"{len(trace):,} requests, {blocks:.1f} blocks each; CPU seconds, limit {LIMIT_S:g} to load")
    print(f"{'format':<18}{'MB':>8}{'load s':>9}{'write s':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for title, ending in (
            ("Parquet", "parquet"),
            ("CSV (no blocks)", "csv"),
            ("Mooncake JSONL", "jsonl"),
        ):
            path = Path(folder) / f"trace.{ending}"
            wrote = cpu_microseconds(partial(write_workload, trace, path), rounds=1) / 1e6
            loaded = cpu_microseconds(partial(read_workload, path), rounds=3) / 1e6
            print(f"{title:<18}{path.stat().st_size / 1e6:>8.1f}{loaded:>9.3f}{wrote:>9.3f}")


if __name__ == "__main__":
    main()
