"""Collect the lengths of the study `reasoning`: the same prompts with and without a request to reason.

    python -m scripts.collect_reasoning

Starts the embedded engine, runs `lengthwise collect` and writes the result to the packaged samples: about a quarter of
an hour on two CPU cores; an interrupted run continues where it stopped. Answers have fixed seeds, but the batches of an
engine differ from run to run, and with them the lengths.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from experiments.reasoning import LIMIT, SENTENCE
from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.workloads import LengthSamples

SAMPLES = Path(__file__).parents[1] / "src" / "lengthwise" / "workloads" / "samples"
WORK = Path("build/reasoning")
PROMPTS_PER_CORPUS = 12
CHARACTERS_AT_MOST = 2_000
"""Longer prompts take minutes on a CPU; about half of those of Apps are longer."""
AT_ONCE = 32
ASK = ["--samples", "4", "--max-tokens", str(LIMIT), "--temperature", "0.7", "--top-p", "0.9"]
"""Settings of the SmolLM2 lengths on which the shipped predictors are trained: only the sentence is new to them."""


def prompts() -> list[dict[str, str]]:
    """Return test prompts of the packaged slice, of each corpus those with the lowest hash; none was trained on."""
    table = LengthSamples.read(SAMPLES / "castillo.parquet").where(split="test").table
    texts = {
        (corpus, prompt_id): text
        for corpus, prompt_id, text in zip(
            *(table[name].to_pylist() for name in ("corpus", "prompt_id", "prompt")), strict=True
        )
        if len(text) <= CHARACTERS_AT_MOST
    }
    chosen = []
    for corpus in sorted({corpus for corpus, _ in texts}):
        ids = [prompt_id for its, prompt_id in texts if its == corpus]
        ids.sort(key=lambda text: xxhash.xxh3_64_intdigest(f"reasoning\n{text}".encode()))
        chosen += [
            {"corpus": corpus, "prompt_id": each, "split": "test", "prompt": texts[corpus, each]}
            for each in ids[:PROMPTS_PER_CORPUS]
        ]
    return chosen


def main() -> None:
    """Collect both halves and write them as one file."""
    WORK.mkdir(parents=True, exist_ok=True)
    prompts_file = WORK / "prompts.jsonl"
    prompts_file.write_text("".join(json.dumps(each) + "\n" for each in prompts()), encoding="utf-8")
    halves = {"": WORK / "plain.parquet", SENTENCE: WORK / "steps.parquet"}
    if not all(is_complete(out) for out in halves.values()):
        with EmbeddedEngine(EngineOptions(policy="fcfs", max_num_seqs=AT_ONCE)) as engine:
            for suffix, out in halves.items():
                if not is_complete(out):
                    where = [f"--url={engine.url}", f"--prompts={prompts_file}", f"--at-once={AT_ONCE}", f"--out={out}"]
                    command = [sys.executable, "-m", "lengthwise", "collect", *where, *ASK, "--suffix", suffix]
                    subprocess.run(command, check=True)  # noqa: S603  (our own command line)
    parts = []
    for suffix, out in halves.items():
        table = pq.read_table(out).drop_columns(["prompt"])  # the texts are in castillo.parquet
        parts.append(table.append_column("sentence", pa.array([suffix or None] * len(table), pa.string())))
    pq.write_table(pa.concat_tables(parts).combine_chunks(), SAMPLES / "reasoning.parquet", compression="zstd")


def is_complete(out: Path) -> bool:
    """Whether a half is completely collected."""
    return out.exists() and not out.with_name(out.name + ".partial").exists()


if __name__ == "__main__":
    main()
