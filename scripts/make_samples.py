"""Rebuild the samples that ship with the package from the full data; the same data give the same files.

    LENGTHWISE_DATA=/path/to/data python scripts/make_samples.py

Only corpora with a permissive licence are included: see src/lengthwise/workloads/samples/CREDITS.md.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from lengthwise.files import data_home
from lengthwise.workloads import LengthSamples, load_castillo, load_trace, write_workload

SAMPLES = Path(__file__).parents[1] / "src" / "lengthwise" / "workloads" / "samples"
CORPORA = ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp")
PROMPTS_PER_SPLIT = 100
# Every LLM where possible; Apps' validation prompts lack one (the file is missing in the data).
MIN_LLMS = 12
TRACE_REQUESTS = 2_000


def castillo_slice() -> LengthSamples:
    """Up to PROMPTS_PER_SPLIT prompts of each corpus and split, the ones with the lowest hash of their id."""
    full = load_castillo().where(corpus=CORPORA)
    keys = list(zip(*(full.table[name].to_pylist() for name in ("corpus", "prompt_id", "split")), strict=True))
    splits = defaultdict(set)
    for corpus, prompt_id, split in keys:
        splits[corpus, prompt_id].add(split)
    rows = Counter(keys)
    llms = len(full.llms)
    candidates = defaultdict(list)
    for (corpus, prompt_id, split), n in rows.items():
        # A few prompts are in two splits upstream, or twice for one LLM: the sample has none of them.
        if len(splits[corpus, prompt_id]) == 1 and MIN_LLMS <= n <= llms:
            candidates[corpus, split].append(prompt_id)
    chosen = {
        (corpus, prompt_id)
        for (corpus, _), ids in candidates.items()
        for prompt_id in sorted(ids, key=lambda text: xxhash.xxh3_64_intdigest(text.encode()))[:PROMPTS_PER_SPLIT]
    }
    keep = np.array([(corpus, prompt_id) in chosen for corpus, prompt_id, _ in keys])
    # Rows of one prompt side by side: its text is then stored once.
    table = full.table.filter(pa.array(keep)).sort_by(
        [(name, "ascending") for name in ("corpus", "split", "prompt_id", "llm")]
    )
    return LengthSamples.from_table(table, origin="slice")


def react_text(home: Path) -> dict[str, str]:
    """ReAct's six HotpotQA examples and its licence; the other prompts of the file are not needed."""
    react = home / "traces" / "react"
    prompts = json.loads((react / "prompts_naive.json").read_text(encoding="utf-8"))
    return {
        "examples": prompts["webthink_simple6"],
        "licence": (react / "LICENSE").read_text(encoding="utf-8"),
    }


def main() -> None:
    """Write the samples and print their sizes."""
    home = data_home()
    if home is None:
        sys.exit("set LENGTHWISE_DATA to the folder that holds the full data")
    SAMPLES.mkdir(exist_ok=True)
    castillo_slice().write(SAMPLES / "castillo.parquet")
    write_workload(load_trace("azure2023_conv").head(TRACE_REQUESTS), SAMPLES / "azure_sample.parquet")
    text = json.dumps(react_text(home), indent=2, ensure_ascii=False)
    (SAMPLES / "react.json").write_text(f"{text}\n", encoding="utf-8")
    for path in sorted(SAMPLES.iterdir()):
        sys.stdout.write(f"{path.stat().st_size:>9,} {path.name}\n")


if __name__ == "__main__":
    main()
