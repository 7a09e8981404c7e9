"""Step times of an OpenAI endpoint, as its client sees them: single prompts of several lengths, then several batches.

The client's times become step times: the time to the first token of a single prompt is a prefill step, and the time
between tokens while a batch decodes is a decode step of that batch. The endpoint must be otherwise idle. The latency
of the server and the network is part of the time to the first token and cannot be separated from the step; a step log
(`vllm.steps`) does not contain it and is preferred if there is one.
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

from lengthwise.client.client import EngineClient, EngineError, EngineResponse, served_model
from lengthwise.client.load import WORDS
from lengthwise.client.sse import DONE, read_events
from lengthwise.errors import InputError
from lengthwise.simulator.fit import StepTimes

_SHORTEST: Final = 16
_GAP_TOKENS: Final = 4  # over which the time between tokens is averaged: one read may return several


@dataclass(frozen=True)
class StepTimesPlan:
    """The requests that are sent. The longest prompt and its answer must fit into the context."""

    url: str
    model: str | None = None
    longest: int = 1024
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    answer: int = 32
    repeats: int = 3
    staggered: bool = False
    """Also send batches in which prefill and decode overlap: only a step log can make use of them."""
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.longest < 4 * _SHORTEST:
            raise InputError(f"prompts of {self.longest} tokens", hint=f"at least {4 * _SHORTEST}")
        if not self.batches or min(self.batches) < 1:
            raise InputError(f"batches of {self.batches}", hint="give sizes of at least 1")

    @property
    def lengths(self) -> list[int]:
        """Prompt lengths: doubling, and the longest."""
        doubled = [_SHORTEST << power for power in range(20) if _SHORTEST << power < self.longest]
        return [*doubled, self.longest]

    def rounds(self) -> list[list[tuple[int, int, float]]]:
        """The requests that are sent together, each as (prompt tokens, answer tokens, delay in seconds).

        First single prompts with an answer of one token, then batches that decode together, each with short and with
        long prompts.
        """
        single = [[(length, 1, 0.0)] for length in self.lengths for _ in range(self.repeats)]
        batched = [
            [(length, self.answer, 0.0)] * size for size in self.batches for length in (_SHORTEST, self.longest // 2)
        ]
        mixed = [
            [(self.lengths[place % len(self.lengths)], self.answer, 0.2 * place) for place in range(2 * size)]
            for size in self.batches
            if size > 1 and self.staggered
        ]
        return [*single, *batched, *mixed]


_Row = tuple[float, float, float, float, float]  # in the order of StepTimes


@dataclass(slots=True)
class _Reception:
    """When a request was sent and its tokens arrived, and the token counts of its `usage`."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0


async def measure_step_times(plan: StepTimesPlan, on_round: Callable[[float], None]) -> StepTimes:
    """Send all rounds, one after the other; return the step times."""
    words = random.Random(plan.seed)  # noqa: S311  (random prompts, so that no prefix is cached)
    rows: list[_Row] = []
    rounds = plan.rounds()
    async with EngineClient(plan.url, silence_timeout_s=plan.timeout_s) as client:
        model = await served_model(client, plan.model)
        await _warm(client, model, words, plan)
        for number, sent in enumerate(rounds):
            bodies = [_body(model, "".join(words.choices(WORDS, k=prompt)), answer) for prompt, answer, _ in sent]
            waits = [wait for *_, wait in sent]
            received = await asyncio.gather(*map(_ask, [client] * len(sent), bodies, waits))
            single = len(received) == 1 and sent[0][1] == 1
            rows += [_prefill_step(received[0])] if single else _decode_steps(received, waits)
            on_round((number + 1) / len(rounds))
    if not any(decoding for _, _, decoding, *_ in rows):
        message = "sends several tokens in one event, which hides its steps"
        raise InputError(message, source=client.url, hint="fit from a step log of the engine with --steps")
    return StepTimes(*np.array(rows, np.float64).T)


async def _warm(client: EngineClient, model: str, words: random.Random, plan: StepTimesPlan) -> None:
    # The first requests may compile kernels or load weights.
    for length in (_SHORTEST, plan.longest):
        await _ask(client, _body(model, "".join(words.choices(WORDS, k=length)), 4), 0.0)


def _body(model: str, prompt: str, answer: int) -> bytes:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": answer,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()


async def _ask(client: EngineClient, body: bytes, wait_s: float) -> _Reception:
    await asyncio.sleep(wait_s)
    received = _Reception(time.perf_counter())
    try:
        async with await client.post("/v1/completions", body) as answer:
            if answer.status != 200:
                message = (await answer.read())[:200].decode(errors="replace")
                raise InputError(f"answers {answer.status}: {message}", source=client.url, hint="a shorter --longest?")
            await _receive(answer, received)
    except EngineError as error:
        raise InputError(str(error), source="--url") from error
    if not received.token_s or not received.prompt_tokens:
        hint = "it must stream /v1/completions"
        raise InputError("the answer has no tokens or no `usage`", source=client.url, hint=hint)
    return received


async def _receive(answer: EngineResponse, received: _Reception) -> None:
    async for payloads in read_events(answer):
        now = time.perf_counter()
        for payload in payloads:
            if payload == DONE:
                continue
            event = json.loads(payload)
            if event.get("choices"):
                received.token_s.append(now)
            usage = event.get("usage") or {}
            received.prompt_tokens = usage.get("prompt_tokens", received.prompt_tokens)
            received.completion_tokens = usage.get("completion_tokens", received.completion_tokens)


def _prefill_step(single: _Reception) -> _Row:
    return (single.prompt_tokens, single.prompt_tokens**2, 0.0, 0.0, single.token_s[0] - single.sent_s)


def _decode_steps(received: Sequence[_Reception], waits: Sequence[float]) -> list[_Row]:
    """Return the steps in which the whole batch decodes: from the latest first token to the earliest last token."""
    if any(waits) or any(len(one.token_s) != one.completion_tokens for one in received):
        return []  # staggered batches serve the step log only; steps are not visible if several tokens share an event
    begin, end = max(one.token_s[0] for one in received), min(one.token_s[-1] for one in received)
    rows = []
    for one in received:
        inside = [moment for moment in one.token_s if begin <= moment <= end]
        for first, last in zip(inside[::_GAP_TOKENS], inside[_GAP_TOKENS::_GAP_TOKENS], strict=False):
            middle = (first + last) / 2
            context = sum(each.prompt_tokens + np.searchsorted(each.token_s, middle) for each in received)
            if last > first:  # otherwise one read returned all of them
                rows.append((0.0, 0.0, float(len(received)), float(context), (last - first) / _GAP_TOKENS))
    return rows
