"""`python -m experiments.castillo train | ask`: what the study `castillo` reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.castillo import prompt_method, training
from lengthwise.errors import InputError
from lengthwise.training.data import SMOLLM2


def main() -> int:
    """Run the command line; the exit code is 2 for a wrong input."""
    parser = argparse.ArgumentParser(prog="python -m experiments.castillo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train the paper's networks on frozen vectors; keep what they predict")
    train.add_argument("--seeds", type=int, default=training.SEEDS, help="[%(default)s]")
    train.add_argument("--vectors", type=Path, default=training.VECTORS, help="cache of the vectors [%(default)s]")
    train.add_argument("-o", "--out", type=Path, default=training.KEPT, help="folder [%(default)s]")
    ask = commands.add_parser("ask", help="ask an LLM how long its answers will be; keep its replies; resumes")
    ask.add_argument("--url", help="an OpenAI-compatible server [default: start the embedded SmolLM2-135M]")
    ask.add_argument("--llm", default=SMOLLM2, help="its name in the data [%(default)s]")
    ask.add_argument("--limit", type=int, help="only so many prompts, those in the file included")
    ask.add_argument("-o", "--out", type=Path, default=prompt_method.KEPT, help="file [%(default)s]")
    given = vars(parser.parse_args())
    try:
        (training.keep if given.pop("command") == "train" else prompt_method.keep)(**given)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
