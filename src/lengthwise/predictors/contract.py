"""The predictor interface: a request as input, predictions as columns, and how a chat is rendered as text.

The rendering is the same in training, gateway and engine: system, history and last user turn in order, roles marked,
tools named. A bare prompt is one user turn and is unchanged: predictors are trained on such prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, TIE_NU, Histogram, LengthDistribution, LogTColumns, log_t
from lengthwise.predictors.thinking import Thinking, thinking_of_text

Floats = NDArray[np.float64]

_MIN_SIGMA: Final = 0.02


@dataclass(frozen=True, slots=True)
class PredictionInput:
    """One rendering of a request, the same in training, gateway and engine.

    `text` holds system, history and last user turn in order, roles marked, tools named (see `render_chat`); a bare
    prompt is one user turn. `thinking` is the request's switch for reasoning LLMs, as its fields state it. The
    others are for prefix memory: `blocks` are the chained hashes of the prompt's blocks, and a template is a name that
    the client declares for its prompts.
    """

    text: str
    llm: str
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    blocks: Sequence[int] | NDArray[np.uint64] = field(default=(), compare=False)  # given by the text
    tenant: str | None = None
    template: str | None = None
    session: str | None = None
    thinking: Thinking | None = None

    @property
    def switch(self) -> Thinking | None:
        """The switch for reasoning, of the request's fields or else of its text; None where it has none."""
        return self.thinking or thinking_of_text(self.text)

    @property
    def learned_as(self) -> str:
        """The name under which an LLM's lengths are learned: with and without thinking it is two LLMs."""
        switch = self.switch
        return self.llm if switch is None else f"{self.llm} (thinking {switch})"

    @property
    def cap(self) -> int:
        """The maximum number of tokens of the answer."""
        return answer_cap(self.max_tokens)


def answer_cap(max_tokens: int | None) -> int:
    """Return the maximum number of tokens of an answer; `max_tokens` is what the client limits it to, if it does."""
    return DEFAULT_CAP if max_tokens is None else max(1, max_tokens)


@runtime_checkable
class Predictions(Protocol):
    """Predictions as columns: [i] is a LengthDistribution.

    `sample_mean` and `sample_std` are the papers' targets, the mean and the spread of repeated answers to the
    same prompt; NaN where a predictor does not estimate them. The spread of the prediction itself is `[i].std()`.
    """

    @property
    def sample_mean(self) -> NDArray[np.float64]:
        """The mean of repeated answers."""

    @property
    def sample_std(self) -> NDArray[np.float64]:
        """The spread of repeated answers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> LengthDistribution: ...

    def quantile(self, q: float) -> NDArray[np.float64]:
        """Return the length that each prediction stays within with probability q."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogTPredictions(LogTColumns):
    """Predictions as log-t columns."""

    sample_mean: NDArray[np.float64]
    sample_std: NDArray[np.float64]
    novelty: NDArray[np.float64] | None = None
    """How unlike the training data each prompt is, from 0 to 1; None where the predictor does not say."""
    level: NDArray[np.float64] | None = None
    """Spread of the log level of the kind of each prompt, which sigma does not hold; None where it is known."""

    def marginal(self) -> LogTPredictions:
        """Return the predictions of answers asked for alone: with the spread of the level in sigma.

        Requests of one kind share its level, so that their order, and what a learner finds, are without it.
        """
        return self if self.level is None else replace(self, sigma=np.hypot(self.sigma, self.level), level=None)

    @classmethod
    def of(
        cls,
        mu: ArrayLike,
        sigma: ArrayLike,
        cap: ArrayLike,
        nu: float = TIE_NU,
        *,
        sample_mean: ArrayLike | None = None,
        sample_std: ArrayLike | None = None,
    ) -> LogTPredictions:
        """Check the columns. Sampling mean and std may be unknown."""
        columns = LogTColumns.of(mu, sigma, cap, nu)
        mean, std = (_known(values, len(columns)) for values in (sample_mean, sample_std))
        return cls(columns.mu, columns.sigma, columns.cap, nu, sample_mean=mean, sample_std=std)


@dataclass(frozen=True, eq=False)
class HistogramPredictions:
    """Predictions as probabilities over shared bins, one row each: the output of a classifier."""

    edges: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    cap: NDArray[np.int64]
    sample_mean: NDArray[np.float64]
    sample_std: NDArray[np.float64]

    @classmethod
    def of(cls, edges: ArrayLike, probabilities: ArrayLike, cap: ArrayLike) -> HistogramPredictions:
        """Check the columns. A classifier has no sampling mean or std."""
        rows = np.asarray(probabilities, np.float64)
        edges_ = np.asarray(edges, np.float64)
        if rows.ndim != 2 or rows.shape[1] + 1 != len(edges_):
            raise InputError(
                f"{len(edges_)} edges for rows of {rows.shape[-1]} bins", hint="give one edge more than bins"
            )
        caps = np.broadcast_to(np.asarray(cap, np.int64), len(rows))
        return cls(edges_, rows, caps, _known(None, len(rows)), _known(None, len(rows)))

    def __repr__(self) -> str:
        return f"HistogramPredictions({len(self)} predictions)"

    def __len__(self) -> int:
        return len(self.probabilities)

    def __getitem__(self, index: int) -> LengthDistribution:
        return Histogram(self.edges, self.probabilities[index], int(self.cap[index]))

    def quantile(self, q: float) -> NDArray[np.float64]:
        """Return the length that each prediction stays within with probability q."""
        return np.array([self[i].quantile(q) for i in range(len(self))])


@runtime_checkable
class LengthPredictor(Protocol):
    """Predicts for a batch of requests. Any string is a valid prompt; an unknown LLM is not an error."""

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        """Return one prediction for each input, in order."""


class LoadedPredictor(Protocol):
    """A LengthPredictor that also takes bare prompts with as many LLM names."""

    @property
    def llms(self) -> tuple[str, ...]:
        """The LLMs it knows."""

    @property
    def card(self) -> Mapping[str, Any]:
        """What its file states: data, licences, figures and limits."""

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> Predictions:
        """Return one prediction for each input, in order."""


@runtime_checkable
class LearningPredictor(LengthPredictor, Protocol):
    """A predictor that learns from the lengths of answers. A server calls these; predictions must not need them."""

    def observe(self, request: PredictionInput, tokens: int, *, censored: bool = False) -> None:
        """Observe the length of an answer; `censored` if it was cut off, so that the length is a lower bound."""

    def state(self) -> bytes:
        """Return what it has learned."""

    def restore(self, state: bytes) -> None:
        """Continue from what `state` returned."""


class Description(NamedTuple):
    """What a learner knows of a prompt."""

    terms: NDArray[np.int32]
    """Its words and pairs of words, as numbers or hashes."""
    features: NDArray[np.float32]
    """Numbers of about unit spread: always as many."""


@runtime_checkable
class DescribingPredictor(LengthPredictor, Protocol):
    """A predictor that describes prompts for a learner (`learner.Learner`) as it predicts them, at no further cost."""

    def describe(self, inputs: Sequence[PredictionInput]) -> tuple[Predictions, Sequence[Description]]:
        """Return one prediction and one description for each input, in order."""


class Observation(NamedTuple):
    """The length of an answer, as a predictor observes it."""

    request: PredictionInput
    tokens: int
    censored: bool


def as_logt(predictions: Predictions) -> LogTPredictions:
    """Return log-t predictions unchanged, and others as the log-t with the same median and quartiles."""
    if isinstance(predictions, LogTPredictions):
        return predictions
    low, median, high = (np.log(np.maximum(predictions.quantile(q), 1.0)) for q in (0.25, 0.5, 0.75))
    sigma = np.maximum((high - low) / (2 * log_t.isf(0.25, TIE_NU)), _MIN_SIGMA)
    caps = [predictions[i].cap for i in range(len(predictions))]
    return LogTPredictions.of(
        median,
        sigma,
        np.array(caps, np.float64),
        sample_mean=predictions.sample_mean,
        sample_std=predictions.sample_std,
    )


def as_inputs(
    prompts: str | PredictionInput | Sequence[str | PredictionInput], llms: str | Sequence[str] | None = None
) -> list[PredictionInput]:
    """Return inputs made of bare prompts and as many LLM names; PredictionInputs pass unchanged and need no names.

    A single string is one prompt, or the LLM of all prompts.
    """
    if isinstance(prompts, str | PredictionInput):
        prompts = [prompts]
    if isinstance(llms, str):
        llms = [llms] * len(prompts)
    if llms is not None and len(llms) != len(prompts):
        raise InputError(f"{len(prompts)} prompts for {len(llms)} LLMs", hint="give one LLM name for each prompt")
    inputs = []
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, PredictionInput):
            inputs.append(prompt)
        elif llms is None:
            raise InputError("a prompt without an LLM", row=number + 1, hint="give one LLM name for each prompt")
        else:
            inputs.append(PredictionInput(prompt, llms[number]))
    return inputs


def _known(values: ArrayLike | None, n: int) -> NDArray[np.float64]:
    return np.full(n, np.nan) if values is None else np.asarray(values, np.float64)


def render_chat(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
    """Render OpenAI chat messages as text; a part without text appears as its type."""
    names = [str(tool.get("function", {}).get("name", "?")) for tool in tools]
    turns = [(str(message.get("role", "user")), _text(message)) for message in messages]
    if len(turns) == 1 and turns[0][0] == "user" and not names:
        return turns[0][1]
    lines = [f"<tools> {', '.join(names)}"] if names else []
    return "\n".join([*lines, *(f"<{role}> {text}" for role, text in turns)])


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        calls = message.get("tool_calls") or []
        return " ".join(f"[call {call.get('function', {}).get('name', '?')}]" for call in calls)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return str(content)
    return "\n".join(
        str(part.get("text", f"[{part.get('type', '?')}]")) if isinstance(part, dict) else str(part) for part in content
    )
