"""The ReAct workload of Preble's evaluation: a long shared prefix, a short random tail.

prompt = "Workload {i mod workloads} " + instruction + k groups of in-context examples + 100 random characters

The instruction and the examples are ReAct's for HotpotQA (Yao et al. 2023, MIT; samples/CREDITS.md).
"""

from __future__ import annotations

import json
import string
from itertools import cycle, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.workloads.arrivals import gamma
from lengthwise.workloads.blocks import BLOCK_TOKENS, block_lists, hash_chunks
from lengthwise.workloads.data_home import sample
from lengthwise.workloads.discrete import DiscreteLengths
from lengthwise.workloads.seeds import generator
from lengthwise.workloads.workload import Workload

INSTRUCTION = """\
Solve a question answering task with interleaving Thought, Action, Observation steps. \
Thought can reason about the current situation, and Action can be three types:\x20
(1) Search[entity], which searches the exact entity on Wikipedia and returns the first paragraph if it exists. \
If not, it will return some similar entities to search.
(2) Lookup[keyword], which returns the next sentence containing keyword in the current passage.
(3) Finish[answer], which returns the answer and finishes the task.
Here are some examples.
"""

GROUP_SIZES = (1, 2, 2, 1)
"""ReAct's six examples as Preble's four "in-context examples"."""

TAIL_CHARACTERS = 100
TAIL_TOKENS = 84
SHARED_TOKENS_OF_FOUR = 1_897
"""With four examples 1,981 tokens, 1,897 of them shared inside a workload (Preble's figures).

No Llama tokenizer is in this package: tokens are these figures spread evenly over the bytes of the text.
"""


def react_workload(
    *,
    workloads: int = 10,
    examples: int = 4,
    requests: int,
    rate: float,
    lengths: DiscreteLengths,
    seed: int,
    cv: float = 1.0,
) -> Workload:
    """`requests` requests of `workloads` workloads in turn; all of one workload share all but the tail.

    Every request sets max_tokens to the largest length of the distribution. Block hashes agree inside a
    workload on what is shared, and nowhere across workloads, whose numbers come first.
    """
    for field, value in (("workloads", workloads), ("examples", examples), ("requests", requests)):
        if value < 1:
            raise InputError(f"{value} {field}", field=field, hint="give at least 1")
    shared = [_Shared(f"Workload {number} {INSTRUCTION}{examples_text(examples)}") for number in range(workloads)]
    tails = _tails(requests, generator(seed, "tails"))
    prefix = [shared[i % workloads] for i in range(requests)]
    prompts = [head.text + tail for head, tail in zip(prefix, tails, strict=True)]
    hashes = [head.blocks_with(tail) for head, tail in zip(prefix, tails, strict=True)]
    return Workload.from_table(
        {
            "arrival_s": gamma(requests, rate, cv, generator(seed, "arrivals")),
            "input_tokens": np.array([head.tokens + TAIL_TOKENS for head in prefix]),
            "output_tokens": lengths.sample(requests, generator(seed, "lengths")),
            "block_hashes": block_lists(np.concatenate(hashes), np.array([len(row) for row in hashes])),
            "prompt": prompts,
            "max_tokens": np.full(requests, lengths.max),
            "tenant": [f"workload-{i % workloads}" for i in range(requests)],
        },
        name=f"react {workloads} workloads, {examples} examples",
        block_size=BLOCK_TOKENS,
    )


def examples_text(groups: int) -> str:
    """The first `groups` groups of in-context examples; more than four begin again."""
    single = _single_examples()
    ends = np.cumsum(GROUP_SIZES).tolist()
    texts = ["".join(single[end - size : end]) for end, size in zip(ends, GROUP_SIZES, strict=True)]
    return "".join(islice(cycle(texts), groups))


class _Shared:
    """What the requests of one workload have in common: text, tokens, and the hashes of its full blocks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._bytes = text.encode()
        self._bytes_per_token = _bytes_of_four() / SHARED_TOKENS_OF_FOUR
        self.tokens = round(len(self._bytes) / self._bytes_per_token)
        full = self.tokens // BLOCK_TOKENS
        edges = [round(block * BLOCK_TOKENS * self._bytes_per_token) for block in range(full + 1)]
        self._hashes = hash_chunks(self._bytes[a:b] for a, b in pairwise(edges))
        self._rest = self._bytes[edges[-1] :]

    def blocks_with(self, tail: str) -> NDArray[np.uint64]:
        """The hashes of this and a tail: the blocks the tail reaches into are its own."""
        own = (self.tokens + TAIL_TOKENS) // BLOCK_TOKENS - len(self._hashes)
        left = BLOCK_TOKENS - self.tokens % BLOCK_TOKENS
        ends = [round((left + i * BLOCK_TOKENS) * TAIL_CHARACTERS / TAIL_TOKENS) for i in range(own)]
        pieces = [tail[a:b].encode() for a, b in pairwise([0, *ends])]
        if pieces:
            pieces[0] = self._rest + pieces[0]
        return np.concatenate([self._hashes, hash_chunks(pieces, int(self._hashes[-1]))])


def _single_examples() -> list[str]:
    text = json.loads(sample("react.json").read_text(encoding="utf-8"))["examples"].strip()
    return [f"Question:{part.rstrip()}\n" for part in text.split("Question:")[1:]]


def _bytes_of_four() -> int:
    return len(f"Workload 0 {INSTRUCTION}{examples_text(len(GROUP_SIZES))}".encode())


def _tails(n: int, rng: np.random.Generator) -> list[str]:
    letters = np.frombuffer((string.ascii_letters + string.digits).encode(), np.uint8)
    drawn = letters[rng.integers(0, len(letters), (n, TAIL_CHARACTERS))]
    return [row.tobytes().decode() for row in drawn]
