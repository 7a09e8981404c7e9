"""Replay a trace with DynoSim, in a Python with ai-dynamo; imports nothing of Lengthwise.

python dynosim.py TRACE.jsonl ENGINES KV_BLOCKS BLOCK_SIZE MAX_NUM_SEQS MAX_NUM_BATCHED_TOKENS
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import dynamo._core as core  # type: ignore[import-not-found]


def main() -> None:
    trace, engines, *limits = sys.argv[1:]
    names = ("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")
    engine = dict(zip(names, map(int, limits), strict=True))
    config = core._normalize_mocker_config({"engine": {"backend": "vllm", **engine}})  # noqa: SLF001
    core.run_mocker_trace_replay([trace], extra_engine_args=config, num_workers=int(engines), trace_block_size=512)
    print(version("ai-dynamo"))
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))


if __name__ == "__main__":
    main()
