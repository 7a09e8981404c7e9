"""Speed of the shipped predictors: `python -m benchmarks.predictors`.

CPU time of all threads (process_time) from text to prediction, per prompt of 64 and 256 WordPiece tokens, one prompt
per call and in batches of 32; the minimum over several rounds, because other processes only add to it. WordPiece alone
and splitting into words alone are timed in the same rounds, as a reference for the machine. Of a prediction the median
is computed. No predictor reads a text twice, so no cache helps. Accuracy: `lengthwise evaluate`.

Learning: CPU time that it adds to a prediction of `fast`, and that of an observation, as shares of one prediction.

Prefix memory: CPU-us per prediction and per observation for random chains of 24 blocks, in a memory of a million nodes.
"""

from __future__ import annotations

import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks import cpu_microseconds, options
from lengthwise.lengths import LogT
from lengthwise.predictors.contract import LoadedPredictor, PredictionInput
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.prefix_memory import PrefixMemory, scopes_of
from lengthwise.predictors.resolve import load_predictor, packaged_predictors
from lengthwise.reports.tables import Table, print_tables
from lengthwise.workloads import load_castillo

SIZES = (64, 256)
TOGETHER = 32
TEXTS = 64
LLM = "meta-llama/Llama-3.1-8B-Instruct"
LIMITS = {("default", 64): 6.0, ("default", 256): 35.0, ("fast", 256): 0.3}
"""Target CPU-ms per prompt."""
_WORD = re.compile(r"\w+")
_LOAD = """
import time; start = time.process_time()
from lengthwise.predictors.resolve import load_predictor
ready = time.process_time(); load_predictor({name!r}).predict(["Hello"], [{llm!r}])
print(ready - start, time.process_time() - ready)
"""


def texts_of(tokenizer: Tokenizer, size: int, prompts: Sequence[str], count: int) -> list[str]:
    """Return different texts of `size` WordPiece tokens, cut from prompts; short prompts are joined with the next."""
    made: dict[str, None] = {}
    at = 0
    while len(made) < count:
        text = prompts[at % len(prompts)]
        while len(code := tokenizer.encode(text, add_special_tokens=False)) < size:
            at += 1
            text = f"{text}\n\n{prompts[at % len(prompts)]}"
        made[text[: code.offsets[size - 1][1]]] = None
        at += 1
    return list(made)


def cpu_ms(calls: dict[str, Callable[[list[str]], object]], texts: list[str], rounds: int) -> dict[str, float]:
    """Return the minimum CPU-ms per text of each call over the rounds, each with other texts, calls alternating."""
    least = dict.fromkeys(calls, float("inf"))
    for round_ in range(rounds + 1):
        batch = texts[round_ :: rounds + 1]
        for name, call in calls.items():
            start = time.process_time()
            call(batch)
            if round_:  # the first round warms up
                least[name] = min(least[name], 1000 * (time.process_time() - start) / len(batch))
    return least


def one_by_one(predictor: LoadedPredictor) -> Callable[[list[str]], object]:
    return lambda texts: [predictor.predict([text], [LLM])[0].quantile(0.5) for text in texts]


def in_batches(predictor: LoadedPredictor) -> Callable[[list[str]], object]:
    def call(texts: list[str]) -> object:
        return [
            predictor.predict(batch, [LLM] * len(batch)).quantile(0.5)
            for batch in (texts[start : start + TOGETHER] for start in range(0, len(texts), TOGETHER))
        ]

    return call


def speed(prompts: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Return CPU-ms per prompt, by call and number of tokens."""
    tokenizer = Tokenizer.from_str(read_model_file(packaged_predictors()["default"]).part("tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    calls: dict[str, Callable[[list[str]], object]] = {
        "splitting into words": lambda texts: [_WORD.findall(text) for text in texts],
        "WordPiece": lambda texts: [tokenizer.encode(text).ids for text in texts],
    }
    for name in packaged_predictors():
        calls[f"{name}, one by one"] = one_by_one(load_predictor(name))
        calls[f"{name}, {TOGETHER} together"] = in_batches(load_predictor(name))
    found = {
        str(size): cpu_ms(calls, texts_of(tokenizer, size, prompts, TEXTS * (rounds + 1)), rounds) for size in SIZES
    }
    return {name: {size: times[name] for size, times in found.items()} for name in calls}


def files(paths: dict[str, Path]) -> dict[str, tuple[float, float, float]]:
    """Return the MB of each file, and the CPU time of a fresh process to import, and to load and predict once."""
    found = {}
    for name, path in paths.items():
        program = _LOAD.format(name=name, llm=LLM)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)  # noqa: S603
        importing, loading = (float(word) for word in done.stdout.split())
        found[name] = (path.stat().st_size / 1e6, importing, loading)
    return found


def memory_us(rounds: int, chains: int = 75_000, timed: int = 10_000) -> tuple[int, dict[str, float]]:
    """Return the nodes of a filled prefix memory, and CPU-us of its calls for known chains of 24 blocks."""
    rng = np.random.default_rng(0)
    memory, start = PrefixMemory(), LogT(5.5, 0.6, 8192)
    blocks = rng.integers(1, 1 << 63, (chains, 24), dtype=np.uint64)
    for chain in blocks:
        memory.observe(scopes_of(LLM, chain), start, 300, text=True)
    scopes = [scopes_of(LLM, chain) for chain in blocks]
    lists = blocks.tolist()
    calls: dict[str, Callable[[int], object]] = {
        "scopes of 24 block hashes": lambda row: scopes_of(LLM, lists[row], tenant="a", session="b"),
        "prediction": lambda row: memory.predict(scopes[row], start, text=True),
        "observation": lambda row: memory.observe(scopes[row], start, 300, text=True),
        "censored observation": lambda row: memory.observe(scopes[row], start, 300, text=True, censored=True),
    }
    rows = rng.permutation(chains)[:timed].tolist()

    def all_rows(call: Callable[[int], object]) -> None:
        for row in rows:
            call(row)

    least = {name: cpu_microseconds(partial(all_rows, call), rounds=rounds) / timed for name, call in calls.items()}
    return memory.held, least


def learning_shares(prompts: Sequence[str], rounds: int, answers: int = 1_100) -> dict[str, float]:
    """Return what learning takes at 256 tokens, in CPU times of one prediction of `fast` in the same rounds."""
    tokenizer = Tokenizer.from_str(read_model_file(packaged_predictors()["default"]).part("tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    inputs = [PredictionInput(text, LLM) for text in texts_of(tokenizer, 256, prompts, TEXTS * (rounds + 1))]
    fast, lengths = load_predictor("fast"), np.random.default_rng(0).integers(10, 2_000, answers).tolist()
    learner = Learner(fast)
    for text, tokens in zip(prompts[:answers], lengths, strict=True):
        learner.observe(PredictionInput(text, LLM), tokens)
    calls: dict[str, Callable[[PredictionInput], object]] = {
        "fast": lambda request: fast.predict([request]),
        "learner": lambda request: learner.predict([request]),
        "observation": lambda request: learner.observe(request, 300),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    orders = ("fast", "learner", "observation"), ("learner", "observation", "fast")
    for number, request in enumerate(inputs):  # in turn: what runs second finds the text in the caches
        for name in orders[number % 2]:
            start = time.thread_time()
            calls[name](request)
            times[name].append(time.thread_time() - start)
    one, learning, observing = (statistics.median(times[name][TEXTS:]) for name in calls)  # the first warm up
    return {"prediction, added": learning / one - 1.0, "observation": observing / one}


def main() -> None:
    rounds = options(__doc__, rounds=5).rounds
    nodes, remembering = memory_us(rounds)
    samples = load_castillo()  # the packaged sample where LENGTHWISE_DATA is not set
    six = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != "Alpaca"])
    prompts = list(dict.fromkeys(text for text in six.table["prompt"].to_pylist() if text))
    order = np.random.default_rng(0).permutation(len(prompts))
    times = speed([prompts[i] for i in order], rounds)
    learning = learning_shares([prompts[i] for i in order], 2 * rounds)
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    targets = ", ".join(f"{name} {limit:g} at {size}" for (name, size), limit in LIMITS.items())
    print_tables(
        [
            Table(
                "CPU-ms per prompt, text to prediction",
                ("", *(f"{size} tokens" for size in SIZES)),
                [(name, *(f"{row[str(size)]:.3f}" for size in SIZES)) for name, row in times.items()],
                [f"Target: at most {targets}. On a slower machine compare with WordPiece. Here: {machine}."],
            ),
            Table(
                "Learning with 1,024 answers kept, CPU time over that of one prediction of `fast` at 256 tokens",
                ("", "share"),
                [(name, f"{value:.2f}") for name, value in learning.items()],
                ["Target: at most 0.1 added to a prediction, 0.5 for an observation."],
            ),
            Table(
                "Prefix memory, CPU-us per call",
                ("", "us"),
                [(name, f"{us:.1f}") for name, us in remembering.items()],
                [f"{nodes:,} nodes held. Target: at most 15 for scopes and prediction, 10 for an observation."],
            ),
            Table(
                "Files",
                ("", "MB", "import CPU-s", "load CPU-s"),
                [(name, *(f"{value:.2f}" for value in row)) for name, row in files(packaged_predictors()).items()],
                ["Load: from the file to the first prediction, in a fresh process."],
            ),
        ]
    )


if __name__ == "__main__":
    main()
