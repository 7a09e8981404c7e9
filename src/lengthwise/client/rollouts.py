"""Rollouts for a trainer: steps of prompts whose answers are predicted to be about equally long.

A step of reinforcement learning waits for its longest answer, while the slots of all others are idle. Prompts of like
predicted length in one step leave less to wait for. Inside a step requests go out longest first, to the engine with the
least predicted work (`offline.Backlog`).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from lengthwise.client.client import EngineClient, engine_url, served_model
from lengthwise.client.collect import CHAT, error_message, seed_of
from lengthwise.client.offline import DEFAULT_AT_ONCE, Backlog, Sender, SendLimits
from lengthwise.defaults import OFFLINE_PREDICTOR
from lengthwise.errors import InputError, require_kind
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job, make_policy
from lengthwise.predictors.contract import LearningPredictor, LengthPredictor, PredictionInput, render_chat
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.prefixes import hash_text

RolloutPrompt = str | Sequence[Mapping[str, Any]]
"""A text, or the messages of a chat."""
ResultT = TypeVar("ResultT")

LONGEST_FIRST: Final = "lept"


class RolloutError(RuntimeError):
    """Answers of a step are missing."""


@dataclass(frozen=True, slots=True)
class RolloutAnswer:
    """One answer to a prompt."""

    text: str
    tokens: int
    cut: bool
    """Whether it ended by `max_tokens`."""
    choice: Mapping[str, Any]
    """The engine's whole choice, with `logprobs` where they were asked for."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt with its answers; `index` is its place among the prompts."""

    index: int
    prompt: RolloutPrompt
    answers: tuple[RolloutAnswer, ...]


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """What a trainer learns from at once."""

    epoch: int
    number: int
    """Within the epoch."""
    rollouts: tuple[Rollout, ...]
    took_s: float


def steps_of(lengths: Sequence[float] | NDArray[np.float64], per_step: int, rng: np.random.Generator) -> list[Any]:
    """Return the rows of each step: neighbours in the order of predicted length; the steps are in random order.

    Equal lengths are mixed anew at each call. Where the rows do not divide evenly, one step has fewer.
    """
    rows = rng.permutation(len(lengths))
    ordered = rows[np.argsort(np.asarray(lengths)[rows], kind="stable")]
    steps = [ordered[begin : begin + per_step] for begin in range(0, len(ordered), per_step)]
    return [steps[number] for number in rng.permutation(len(steps))]


def rollouts(
    prompts: Sequence[RolloutPrompt],
    samples: int = 8,
    engines: Sequence[str] = ("http://127.0.0.1:8000",),
    *,
    per_step: int = 64,
    epochs: int = 1,
    like_lengths: bool = True,
    body: Mapping[str, Any] | None = None,
    model: str | None = None,
    at_once: int = DEFAULT_AT_ONCE,
    predictor: str | LengthPredictor = OFFLINE_PREDICTOR,
    seed: int = 0,
    retries: int = 3,
    timeout_s: float = 3600.0,
    api_key: str | None = None,
) -> Iterator[RolloutStep]:
    """Return an iterator of steps for a trainer: `per_step` prompts, each with `samples` answers.

    A step is generated when the trainer asks for it, never ahead, by the weights that the engines have then. Each epoch
    has every prompt once, prompts of like predicted length in one step, and the steps in random order: that changes
    which prompts are together, which `like_lengths=False` does not. Predictions of later epochs come from those of
    earlier ones, by prefix memory. `engines` are URLs of OpenAI servers; `body` has further fields of each request
    (`max_tokens`, `temperature`, `logprobs`); `at_once` is what one engine runs at once (max_num_seqs).
    RolloutError if a request has no answer after `retries`; InputError if an engine cannot be reached at first.
    """
    require_kind(prompts, (list, tuple), "prompts", "a list of texts, or of lists of chat messages")
    counts = {"samples": samples, "per_step": per_step, "epochs": epochs, "at_once": at_once}
    for name, value in counts.items():
        require_kind(value, int, name, "a whole number")
        if value < 1:
            raise InputError(f"{name} is {value}", field=name, hint="give at least 1")
    if not prompts or not engines:
        raise InputError(f"no {'engines' if prompts else 'prompts'}", hint="give at least one")
    for row, prompt in enumerate(prompts, start=1):
        if not isinstance(prompt, str) and not (isinstance(prompt, list | tuple) and prompt):
            raise InputError("is neither a text nor a list of chat messages", source="prompts", row=row)
    urls = [engine_url(url) for url in engines]
    chosen = resolve_predictor(predictor)
    plan = _Plan(tuple(prompts), samples, at_once, dict(body or {}), seed, SendLimits(retries))
    clients = [EngineClient(url, api_key=api_key, silence_timeout_s=timeout_s) for url in urls]
    return _steps(plan, clients, _Lengths(chosen, plan), model, per_step, epochs, like_lengths)


@dataclass(frozen=True)
class _Plan:
    prompts: tuple[RolloutPrompt, ...]
    samples: int
    at_once: int
    body: dict[str, Any]
    seed: int
    limits: SendLimits

    @property
    def max_tokens(self) -> int | None:
        found = self.body.get("max_completion_tokens", self.body.get("max_tokens"))
        return found if isinstance(found, int) else None

    def messages(self, row: int) -> Sequence[Mapping[str, Any]]:
        prompt = self.prompts[row]
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _steps(
    plan: _Plan,
    clients: list[EngineClient],
    lengths: _Lengths,
    model: str | None,
    per_step: int,
    epochs: int,
    like_lengths: bool,
) -> Iterator[RolloutStep]:
    rng = np.random.default_rng(plan.seed)
    with _LoopThread() as loop:
        served = loop.run(_open(clients, model))
        try:
            for epoch in range(epochs):
                predicted = lengths.predict(served)
                means = [each.mean() for each in predicted]
                rows_of_steps = steps_of(means if like_lengths else np.zeros(len(means)), per_step, rng)
                for number, rows in enumerate(rows_of_steps):
                    began = time.monotonic()
                    step = _Step(plan, clients, served, epoch, [int(row) for row in rows], predicted)
                    loop.run(step.run())
                    made = step.rollouts(number)
                    lengths.observe(made, served)
                    yield RolloutStep(epoch, number, made, time.monotonic() - began)
        finally:
            loop.run(_close(clients))


async def _open(clients: Sequence[EngineClient], model: str | None) -> str:
    found = ""
    for client in clients:
        await client.open()
        found = found or await served_model(client, model, "engines")
        await served_model(client, found, "engines")
    return found


async def _close(clients: Sequence[EngineClient]) -> None:
    for client in clients:
        await client.close()


class _LoopThread:
    """An event loop in a thread, so that rollouts work in a notebook, whose thread has a loop already."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollouts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C: requests in flight are aborted
            future.cancel()
            raise


class _Step(Sender):
    """The answers of one step."""

    def __init__(
        self,
        plan: _Plan,
        clients: Sequence[EngineClient],
        model: str,
        epoch: int,
        rows: Sequence[int],
        predicted: Sequence[LengthDistribution],
    ) -> None:
        backlog = Backlog(make_policy(LONGEST_FIRST), engines=len(clients), slots=plan.at_once)
        super().__init__(clients, backlog, plan.limits)
        self._plan, self._model, self._epoch, self._rows = plan, model, epoch, rows
        self._answers: dict[str, RolloutAnswer] = {}
        self._failed: list[str] = []
        for place, row in enumerate(rows):
            for sample in range(plan.samples):
                job = Job(f"{row} {sample}", float(place), prediction=predicted[row], max_tokens=plan.max_tokens)
                backlog.push(job, 0.0)

    def request(self, job: Job) -> tuple[str, bytes]:
        row = int(job.id.split()[0])
        seed = seed_of(self._plan.seed, f"{self._epoch}\n{job.id}")
        body = {"model": self._model, "seed": seed, **self._plan.body, "messages": self._plan.messages(row)}
        return CHAT, json.dumps(body).encode()

    def answered(self, job: Job, engine: int, data: bytes) -> int | str:
        try:
            body = json.loads(data)
            choice, tokens = body["choices"][0], body["usage"]["completion_tokens"]
            text, cut = choice["message"].get("content") or "", choice["finish_reason"] == "length"
        except (ValueError, LookupError, TypeError, AttributeError):
            return "malformed"
        self._answers[job.id] = RolloutAnswer(text, int(tokens), cut, choice)
        return max(1, int(tokens))

    def failed(self, job: Job, kind: str, data: bytes) -> None:
        message = error_message(data) if kind.startswith("http_") else ""
        self._failed.append(f"{kind}: {message}" if message else kind)

    def rollouts(self, number: int) -> tuple[Rollout, ...]:
        wanted = len(self._rows) * self._plan.samples
        if len(self._answers) < wanted:
            why = self._failed[0] if self._failed else "no engine takes requests"
            missing = wanted - len(self._answers)
            raise RolloutError(f"step {number} of epoch {self._epoch} lacks {missing} of {wanted} answers ({why})")
        return tuple(
            Rollout(
                row,
                self._plan.prompts[row],
                tuple(self._answers[f"{row} {sample}"] for sample in range(self._plan.samples)),
            )
            for row in self._rows
        )


class _Lengths:
    """The predicted lengths of the prompts, which learn from every step.

    For prefix memory each prompt is a session of its own: what is remembered there are its own answers.
    """

    def __init__(self, predictor: LengthPredictor, plan: _Plan) -> None:
        self._predictor, self._plan = predictor, plan
        self._inputs: list[PredictionInput] = []

    def predict(self, llm: str) -> list[LengthDistribution]:
        if not self._inputs:
            self._inputs = [self._input(row, llm) for row in range(len(self._plan.prompts))]
        found = self._predictor.predict(self._inputs)
        return [found[row] for row in range(len(self._inputs))]

    def observe(self, made: Sequence[Rollout], llm: str) -> None:
        if isinstance(self._predictor, LearningPredictor):
            for rollout in made:
                for answer in rollout.answers:
                    tokens = max(1, answer.tokens)
                    self._predictor.observe(self._inputs[rollout.index], tokens, censored=answer.cut)

    def _input(self, row: int, llm: str) -> PredictionInput:
        text = render_chat(self._plan.messages(row))
        session = f"prompt {xxhash.xxh3_64_hexdigest(text.encode(errors='surrogatepass'))}"
        return PredictionInput(text, llm, self._plan.max_tokens, blocks=hash_text(text), session=session)
