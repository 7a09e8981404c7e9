"""Probing an OpenAI endpoint: prompts of several lengths alone, then batches of several sizes.

What the client sees becomes steps: the time to the first token of a lone prompt is a step that computes it, and the
time between tokens while a batch decodes is a step of that batch. The endpoint must be idle otherwise. What the
endpoint and the network add to a first token is in it and cannot be told from the step; the engine's own log can
(`engines.steps`), so that one is to be preferred where it can be had.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lengthwise.engines.client import EngineAnswer, EngineClient, EngineError, served_model
from lengthwise.engines.fit import StepTimes
from lengthwise.errors import InputError

# One token each, with the space before them, in the tokenizers of the common LLMs.
_WORDS: Final = (" the", " of", " and", " to", " in", " is", " that", " for", " it", " was", " on", " are", " as")
_SHORTEST: Final = 16
_PACE: Final = 4  # tokens over which a gap is averaged: one read may bring several


@dataclass(frozen=True)
class ProbePlan:
    """What is sent. The longest prompt and its answer must fit into the context."""

    url: str
    model: str | None = None
    longest: int = 1024
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    answer: int = 32
    repeats: int = 3
    staggered: bool = False
    """Whether batches are sent too in which prompts are computed while others decode: for an engine that logs steps."""
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.longest < 4 * _SHORTEST:
            raise InputError(f"prompts of {self.longest} tokens", hint=f"at least {4 * _SHORTEST}")
        if not self.batches or min(self.batches) < 1:
            raise InputError(f"batches of {self.batches}", hint="give sizes of at least 1")

    @property
    def lengths(self) -> list[int]:
        """Prompts by doubling, and the longest."""
        doubled = [_SHORTEST << power for power in range(20) if _SHORTEST << power < self.longest]
        return [*doubled, self.longest]

    def rounds(self) -> list[list[tuple[int, int, float]]]:
        """What is sent together: tokens of the prompt, tokens of the answer, seconds after the first.

        Alone and answered with one token; then batches that decode together, each twice: once over short prompts and
        once over long ones.
        """
        alone = [[(length, 1, 0.0)] for length in self.lengths for _ in range(self.repeats)]
        together = [
            [(length, self.answer, 0.0)] * size for size in self.batches for length in (_SHORTEST, self.longest // 2)
        ]
        mixed = [
            [(self.lengths[place % len(self.lengths)], self.answer, 0.2 * place) for place in range(2 * size)]
            for size in self.batches
            if size > 1 and self.staggered
        ]
        return [*alone, *together, *mixed]


@dataclass(slots=True)
class _Heard:
    """One answer: when it was asked, when its tokens came."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    told_tokens: int = 0


async def probe(plan: ProbePlan, on_round: Callable[[float], None]) -> StepTimes:
    """Send all rounds, one after the other; what was seen of them as steps."""
    words = random.Random(plan.seed)  # noqa: S311  (prompts that nobody has in a cache)
    rows: list[tuple[float, float, float, float, float]] = []
    rounds = plan.rounds()
    async with EngineClient(plan.url, silence_timeout_s=plan.timeout_s) as client:
        model = await served_model(client, plan.model)
        await _warm(client, model, words, plan)
        for number, sent in enumerate(rounds):
            bodies = [_body(model, "".join(words.choices(_WORDS, k=prompt)), answer) for prompt, answer, _ in sent]
            waits = [wait for *_, wait in sent]
            heard = await asyncio.gather(*map(_ask, [client] * len(sent), bodies, waits))
            rows += _alone(heard) if len(heard) == 1 and sent[0][1] == 1 else _together(heard, waits)
            on_round((number + 1) / len(rounds))
    return StepTimes(*np.array(rows, np.float64).T)


async def _warm(client: EngineClient, model: str, words: random.Random, plan: ProbePlan) -> None:
    """A first answer may compile or load something."""
    for length in (_SHORTEST, plan.longest):
        await _ask(client, _body(model, "".join(words.choices(_WORDS, k=length)), 4), 0.0)


def _body(model: str, prompt: str, answer: int) -> bytes:
    asked: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": answer,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(asked).encode()


async def _ask(client: EngineClient, body: bytes, wait_s: float) -> _Heard:
    await asyncio.sleep(wait_s)
    heard = _Heard(time.perf_counter())
    try:
        answer = await client.post("/v1/completions", body, {"content-type": "application/json"})
        try:
            if answer.status != 200:
                said = (await answer.read())[:200].decode(errors="replace")
                raise InputError(f"answers {answer.status}: {said}", source=client.url, hint="a shorter --longest?")
            await _listen(answer, heard)
        finally:
            answer.close()
    except EngineError as error:
        raise InputError(str(error), source="--url") from error
    if not heard.token_s or not heard.prompt_tokens:
        raise InputError("no tokens, or no `usage`, came", source=client.url, hint="it must stream /v1/completions")
    return heard


async def _listen(answer: EngineAnswer, heard: _Heard) -> None:
    rest = b""
    while data := await answer.chunk():
        now = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if event.get("choices"):
                heard.token_s.append(now)
            usage = event.get("usage") or {}
            heard.prompt_tokens = usage.get("prompt_tokens", heard.prompt_tokens)
            heard.told_tokens = usage.get("completion_tokens", heard.told_tokens)


def _alone(heard: Sequence[_Heard]) -> list[tuple[float, float, float, float, float]]:
    """A step that computes a prompt, by the first token of a lone one."""
    one = heard[0]
    return [(one.prompt_tokens, one.prompt_tokens**2, 0.0, 0.0, one.token_s[0] - one.sent_s)]


def _together(heard: Sequence[_Heard], waits: Sequence[float]) -> list[tuple[float, float, float, float, float]]:
    """Steps that only decode: between the first token of the last to begin and the last token of the first to end."""
    if any(waits) or any(len(one.token_s) != one.told_tokens for one in heard):
        return []  # staggered ones are for the engine's own log, and where tokens come in bunches no step is seen
    begin, end = max(one.token_s[0] for one in heard), min(one.token_s[-1] for one in heard)
    rows = []
    for one in heard:
        inside = [moment for moment in one.token_s if begin <= moment <= end]
        for first, last in zip(inside[::_PACE], inside[_PACE::_PACE], strict=False):
            middle = (first + last) / 2
            context = sum(each.prompt_tokens + np.searchsorted(each.token_s, middle) for each in heard)
            if last > first:  # else all of them came in one read
                rows.append((0.0, 0.0, float(len(heard)), float(context), (last - first) / _PACE))
    return rows
