"""ShareGPT's JSON: conversations as lists of turns; each answered human turn becomes one request.

The prompt of a turn is the whole conversation up to it, so the prompts of one conversation grow, each the
beginning of the next. No arrivals are known.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lengthwise.errors import InputError
from lengthwise.workloads.blocks import BLOCK_TOKENS, BYTES_PER_TOKEN, text_block_lists
from lengthwise.workloads.files import open_text
from lengthwise.workloads.tabular import Parsed
from lengthwise.workloads.workload import LeftOut

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
}
_SHAPE = 'each turn is {"from": "human" or "gpt", "value": the text}'
_NO_PAIR = "conversations without a human turn that is answered"
_EMPTY = "turns answered with an empty text"
_UNANSWERED = "human turns without an answer"


def estimate_tokens(text: str) -> int:
    """Tokens of a text where no tokenizer is known: a token for every four bytes of UTF-8, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def read_sharegpt(path: Path, count_tokens: Callable[[str], int] | None = None) -> Parsed:
    """One request per answered human turn, the conversation's id as its session."""
    count = count_tokens or estimate_tokens
    columns: dict[str, list[Any]] = {name: [] for name in ("prompt", "input_tokens", "output_tokens", "session")}
    left_out: Counter[str] = Counter()
    for row, (session, turns) in enumerate(_conversations(path), start=1):
        pairs = list(_pairs(turns, path, row, left_out))
        left_out[_NO_PAIR] += not pairs
        for prompt, answer in pairs:
            columns["prompt"].append(prompt)
            columns["input_tokens"].append(count(prompt))
            columns["output_tokens"].append(count(answer))
            columns["session"].append(session)
    if not columns["prompt"]:
        raise InputError("no conversation has a human turn that is answered", source=path, field="conversations")
    columns["arrival_s"] = [0.0] * len(columns["prompt"])
    rules = tuple(LeftOut(rule, rows) for rule, rows in left_out.items() if rows)
    table = pa.table(
        {
            **columns,
            "prompt": pa.array(columns["prompt"], pa.large_string()),
            "block_hashes": text_block_lists(columns["prompt"], np.array(columns["input_tokens"])),
        }
    )
    return Parsed(table, block_size=BLOCK_TOKENS, left_out=rules)


def _pairs(turns: Any, path: Path, row: int, left_out: Counter[str]) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Each answered human turn: the conversation up to it, and the answer."""
    history = ""
    asked = False
    for role, text in _turns(turns, path, row):
        if role == "assistant" and asked:
            if text:
                yield f"{history}assistant:", text
            else:
                left_out[_EMPTY] += 1
        elif role == "user" and asked:
            left_out[_UNANSWERED] += 1
        asked = role == "user" or (asked and role != "assistant")
        history = f"{history}{role}: {text}\n\n"
    left_out[_UNANSWERED] += asked


def _turns(turns: Any, path: Path, row: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    if not isinstance(turns, list):
        raise InputError("no list of turns", source=path, row=row, field="conversations", hint=_SHAPE)
    for turn in turns:
        role = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        for field, value in (("from", role), ("value", text)):
            if not isinstance(value, str):
                raise InputError(f"{value!r} is not a text", source=path, row=row, field=field, hint=_SHAPE)
        yield _ROLES.get(str(role), str(role)), str(text)


def _conversations(path: Path) -> Iterator[tuple[str, Any]]:
    with open_text(path) as stream:
        text = stream.read()
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        row = _row_at(text)
        raise InputError(
            f"not JSON: {error.msg}",
            source=path,
            row=row,
            field="conversations",
            hint="the file looks truncated",
        ) from error
    if not isinstance(data, list):
        raise InputError("not a JSON list", source=path, hint="ShareGPT files are a list of conversations")
    for row, entry in enumerate(data, start=1):
        if not isinstance(entry, dict) or "conversations" not in entry:
            raise InputError("missing key", source=path, row=row, field="conversations", hint=_SHAPE)
        yield str(entry.get("id", row)), entry["conversations"]


def _row_at(text: str) -> int:
    """The number of the list entry at which broken JSON breaks."""
    decoder = json.JSONDecoder()
    row, at = 1, text.find("[") + 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            _, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return row
        row += 1
