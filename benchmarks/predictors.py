"""Speed and accuracy of the shipped predictors: `python -m benchmarks.predictors [--json] [--no-accuracy]`.

Speed: CPU time of all threads (process_time) from text to prediction, per prompt of 64 and 256 WordPiece tokens, one
prompt per call and in batches of 32; the minimum over several rounds, because other processes only add to it. WordPiece
alone and splitting into words alone are timed in the same rounds, as a reference for the machine. Of a prediction the
median is computed. No predictor reads a text twice, so no cache helps.

Accuracy: CASTILLO's official test prompts without degenerate samples, separately for the six corpora and for Alpaca
(never trained on), with a constant per LLM, a constant per LLM and corpus, and the noise ceiling. Without
LENGTHWISE_DATA the packaged sample of the six corpora is used; the tables name the data.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lengthwise.predictors.evaluation import Evaluation, EvaluationScores, evaluate, evaluated_rows
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.resolve import LoadedPredictor, load_predictor, packaged_predictors
from lengthwise.reports.tables import Table, print_tables, share
from lengthwise.workloads import LengthSamples, load_castillo

SIZES = (64, 256)
TOGETHER = 32
TEXTS = 64
LLM = "meta-llama/Llama-3.1-8B-Instruct"
UNSEEN = "Alpaca"
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


def files(paths: dict[str, Path]) -> dict[str, dict[str, float]]:
    """Return the size of each file, and the CPU time of a fresh process to import, and to load and predict once."""
    found = {}
    for name, path in paths.items():
        program = _LOAD.format(name=name, llm=LLM)
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)  # noqa: S603
        importing, loading = (float(word) for word in done.stdout.split())
        found[name] = {"MB": path.stat().st_size / 1e6, "import CPU-s": importing, "load CPU-s": loading}
    return found


def accuracy(predictors: dict[str, LoadedPredictor], samples: LengthSamples) -> dict[str, dict[str, Any]]:
    """Return tau, MAE and coverage of each predictor and each baseline, on the six corpora and on Alpaca."""
    found: dict[str, dict[str, Any]] = {}
    for title, corpora in (
        ("six corpora", [corpus for corpus in samples.corpora if corpus != UNSEEN]),
        ("Alpaca", [corpus for corpus in samples.corpora if corpus == UNSEEN]),
    ):
        if not corpora:
            continue
        rows, reference = evaluated_rows(samples.where(corpus=corpora), None)
        for name, predictor in predictors.items():
            result = evaluate(predictor, rows, name=name, reference=reference)
            for subject, figures in _subjects(result).items():
                found.setdefault(subject, {})[title] = figures
    # The baselines are the same for every predictor: predictors first, then each baseline once.
    return {name: found[name] for name in (*predictors, *(name for name in found if name not in predictors))}


def _subjects(result: Evaluation) -> dict[str, dict[str, float]]:
    return {name: _figures(breakdown.overall) for name, breakdown in result.subjects.items()}


def _figures(scores: EvaluationScores) -> dict[str, float]:
    return {
        "rows": scores.rows,
        "tau": scores.tau,
        "MAE": scores.mae_mean,
        "in 50 %": scores.coverage_50,
        "in 90 %": scores.coverage_90,
    }


def tables(found: dict[str, Any]) -> list[Table]:
    speed_rows = [(name, *(f"{times[str(size)]:.3f}" for size in SIZES)) for name, times in found["CPU-ms"].items()]
    targets = ", ".join(f"{name} {limit:g} at {size}" for (name, size), limit in LIMITS.items())
    shown = [
        Table(
            "CPU-ms per prompt, text to prediction",
            ("", *(f"{size} tokens" for size in SIZES)),
            speed_rows,
            [f"Target: at most {targets}. On a slower machine compare with WordPiece. Here: {found['machine']}."],
        ),
        Table(
            "Files",
            ("", "MB", "import CPU-s", "load CPU-s"),
            [(name, *(f"{value:.2f}" for value in row.values())) for name, row in found["files"].items()],
            ["Load: from the file to the first prediction, in a fresh process."],
        ),
    ]
    for place in ("six corpora", "Alpaca"):
        rows = [
            (name, *_cells(figures[place])) for name, figures in found.get("accuracy", {}).items() if place in figures
        ]
        if rows:
            title = f"Accuracy, {place}, test prompts of {found['data']}"
            note = "Constants are fitted to other prompts of the same corpora; no predictor was trained on Alpaca."
            columns = ("", "rows", "tau", "MAE of the mean", "in 50 %", "in 90 %")
            shown.append(Table(title, columns, rows, [note]))
    return shown


def _cells(figures: dict[str, float]) -> list[str]:
    number = {"rows": "{:,.0f}", "tau": "{:.3f}", "MAE": "{:.1f}"}
    return [
        "–" if np.isnan(value) else number[name].format(value) if name in number else share(value)
        for name, value in figures.items()
    ]


def measure(*, rounds: int, with_accuracy: bool) -> dict[str, Any]:
    samples = load_castillo()  # the packaged sample where LENGTHWISE_DATA is not set
    six = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != UNSEEN])
    prompts = list(dict.fromkeys(text for text in six.table["prompt"].to_pylist() if text))
    order = np.random.default_rng(0).permutation(len(prompts))
    paths = packaged_predictors()
    found: dict[str, Any] = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "data": samples.origin,
        "CPU-ms": speed([prompts[i] for i in order], rounds),
        "files": files(paths),
    }
    if with_accuracy:
        found["accuracy"] = accuracy({name: load_predictor(name) for name in paths}, samples)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=5, help="of timing, after one to warm up")
    parser.add_argument("--no-accuracy", action="store_true", help="speed only")
    arguments = parser.parse_args()
    found = measure(rounds=arguments.rounds, with_accuracy=not arguments.no_accuracy)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print_tables(tables(found))


if __name__ == "__main__":
    main()
