"""`lengthwise batch` on the embedded engine, longest first and in order of the file, and after a kill.

    python -m benchmarks.embedded_batch [--slots 8] [--max-tokens 96]

48 questions of six kinds, greedy, to vLLM with SmolLM2-135M. A first run is killed after a quarter of the answers, and
a second one goes on from its file. Then the whole file is answered in each order. Steps of the engine do not depend on
what else the machine does, seconds do; no order needs fewer steps than tokens / slots.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import options
from lengthwise.simulator.step_log import read_steps
from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions

TOPICS: Final = ("tides", "bread", "bridges", "the moon", "rivers", "glass", "bees", "clocks")
QUESTIONS: Final = (
    "Answer with one word: what are {} made of?",
    "Explain {} in one sentence.",
    "Explain {} to a child.",
    "Write a long essay about {}.",
    "List ten facts about {}.",
    "Is it true that {} are old? Answer yes or no.",
)
ORDERS: Final = {"lept": "longest first", "fcfs": "order of the file"}


def write_requests(path: Path, max_tokens: int) -> int:
    """Write the questions as a file of requests; return their number."""
    texts = [question.format(topic) for topic in TOPICS for question in QUESTIONS]
    lines = []
    for number, text in enumerate(texts):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0}
        lines.append({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return len(texts)


def command(url: str, requests: Path, out: Path, slots: int, *more: str) -> list[str]:
    given = ["--engine", url, "--at-once", str(slots), "-o", str(out), "--json", *more]
    return [sys.executable, "-m", "lengthwise", "batch", str(requests), *given]


def answered(command_line: list[str]) -> dict[str, Any]:
    """Return the facts that a batch prints."""
    facts: dict[str, Any] = json.loads(subprocess.run(command_line, stdout=subprocess.PIPE, check=True).stdout)  # noqa: S603
    return facts


def count_answers(out: Path) -> int:
    return out.read_bytes().count(b"\n") if out.exists() else 0


def kill_and_go_on(url: str, requests: Path, out: Path, slots: int, after: int) -> str:
    """Kill a batch after so many answers and run it again; return what the second run had and asked."""
    again = command(url, requests, out, slots)
    with subprocess.Popen(again, stdout=subprocess.DEVNULL) as first:  # noqa: S603
        while first.poll() is None and count_answers(out) < after:
            time.sleep(0.05)
        first.kill()
    facts = answered(again)
    ids = [json.loads(line)["custom_id"] for line in out.read_text().splitlines()]
    assert len(set(ids)) == len(ids) == facts["requests"], ids
    new = facts["answers"] - facts["resumed"]
    return f"killed with {facts['resumed']} answers; the second run asked {new}: {len(ids)} answers, each once"


def main() -> None:
    given = options(__doc__, slots=8, max_tokens=96)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        requests, steps, runs = folder / "requests.jsonl", folder / "steps.parquet", {}
        n = write_requests(requests, given.max_tokens)
        engine = EngineOptions(
            policy="fcfs", max_num_seqs=given.slots, state="off", plugin_options={"steps": str(steps)}
        )
        with EmbeddedEngine(engine) as running:
            print(kill_and_go_on(running.url, requests, folder / "killed.jsonl", given.slots, n // 4), flush=True)
            for order in ORDERS:
                began = time.time()
                line = command(running.url, requests, folder / f"{order}.jsonl", given.slots, "--policy", order)
                runs[order] = began, answered(line), time.time()
        starts = read_steps(steps)[0]["start_s"].to_numpy()
    for order, (began, facts, ended) in runs.items():
        count, tokens = int(((starts >= began) & (starts <= ended)).sum()), facts["output_tokens"]
        least = -(-tokens // given.slots)
        print(f"{ORDERS[order]}: {count} steps (at least {least} for {tokens} tokens), {facts['took_s']:.0f} s")


if __name__ == "__main__":
    main()
