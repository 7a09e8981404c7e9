"""The prompt method: ask the LLM itself how long its answer will be, and parse the number from its reply.

The baseline of the BERT-on-CASTILLO paper (its appendix A.2).
"""

from __future__ import annotations

import json
import math
import re
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from lengthwise.errors import InputError
from lengthwise.lengths import wide_prior
from lengthwise.predictors.contract import LogTPredictions, PredictionInput, as_inputs

TEMPLATE: Final = (
    "Predict the length of your answer before answering my question, use the format:"
    '"[length(only one number)]: (your answer)". '
    "The length of your answer should be as close to the prediction of the length you give me as possible. "
    "Remember to follow the format. "
)
"""The appendix's text; the prompt follows."""

MAX_TOKENS: Final = 64
"""Tokens of the reply that are generated: the length comes first."""

LONGEST: Final = 1_000_000
"""Tokens; a larger number is not a length."""

_PARSED: Final = 400  # characters after the reasoning; a length is stated first or not at all
_REASONING: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_MARKS: Final = re.compile(r"[*_`\"“”]")
_ABOUT: Final = (
    r"(?:(?:about|around|approximately|approx\.?|roughly|exactly|up to|at most|~|≈|<|=|:|is|of|be|will)\s*)*"
)
_COUNT: Final = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\.\d+)?)"
_RANGE: Final = rf"(?P<low>{_COUNT})(?P<kilo>k\b)?(?:\s*(?:-|–|—|to)\s*(?P<high>{_COUNT}))?"
_UNIT: Final = r"[-\s]*(?:tokens?|words?|characters?)\b"
_LABEL: Final = r"(?:\w+\s+){0,3}?length(?:\s*\(only one number\))?(?:\s+of\s+(?:my|the|this)\s+\w+)?"
_TALK: Final = r"[^.\d\n]{0,80}?"

# From the strictest form to the loosest. Each matches at the beginning only, so that numbers in the answer do not
# count.
_FORMS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"[\[(]\s*{_ABOUT}{_RANGE}(?:{_UNIT})?\s*[\])]",  # [55]: I am ...
        rf"[\[(]?\s*{_LABEL}\s*[\[(\]):=\s]*{_ABOUT}[\[(]?\s*{_RANGE}",  # [length]: 120 ..., Length: about 200 words
        rf"{_ABOUT}{_RANGE}(?:{_UNIT})?\s*[\])]?\s*[:：](?!\d)",  # 55: I am ..., ~55 words: I am ...
        rf"{_ABOUT}{_RANGE}{_UNIT}",  # 150 tokens
        rf"{_ABOUT}{_RANGE}\s*(?:\n|\Z)",  # a number alone on its line
        rf"{_TALK}[\[(]\s*{_RANGE}(?:{_UNIT})?\s*[\])]\s*[:：]",  # Sure! [55]: I am ...
        rf"{_TALK}\b(?:answer|response|reply|length)\b{_TALK}{_RANGE}{_UNIT}",  # My answer will have about 80 words.
    )
)


def question(prompt: str) -> str:
    """Return the prompt inside the template."""
    return TEMPLATE + prompt


def parse_length(answer: str) -> int | None:
    """Return the length that the reply states; None where it states none.

    The number counts as tokens whatever unit is named, as in the paper; a range counts as its middle. Only the
    beginning is parsed, after any reasoning.
    """
    text = _MARKS.sub("", _REASONING.sub("", answer).lstrip()[:_PARSED]).lstrip()
    for form in _FORMS:
        if found := form.match(text):
            low = _number(found["low"]) * (1000 if found["kilo"] else 1)
            stated = low if found["high"] is None else (low + _number(found["high"])) / 2
            return int(stated) if 1 <= stated <= LONGEST else None
    return None


class AskPredictor:
    """The prompt method over an OpenAI-compatible server: LogT(log(stated tokens), 1, cap), else the wide prior.

    The LLM states a number, not a spread; sigma is that of the wide prior. `stated` and `asked` count how often it
    stated a length at all. The first model of the server answers, whatever LLM an input names.
    """

    def __init__(self, url: str, *, concurrency: int = 16, timeout_s: float = 300.0) -> None:
        base = url.rstrip("/").removesuffix("/v1")
        if not base.startswith(("http://", "https://")):
            raise InputError(f"'{url}' is not a URL", field="ask", hint="give ask:http://HOST:PORT")
        self.url = base
        self.asked = self.stated = 0
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._model: str | None = None

    def __repr__(self) -> str:
        return f"AskPredictor({self.url!r})"

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        """Return one prediction for each input, in order."""
        asked = as_inputs(inputs, llms)
        lengths = [parse_length(reply) for reply in self.replies([each.text for each in asked])]
        self.asked += len(lengths)
        self.stated += sum(length is not None for length in lengths)
        prior = wide_prior()
        mu = [prior.mu if length is None else math.log(length) for length in lengths]
        return LogTPredictions.of(mu, prior.sigma, [each.cap for each in asked])

    def replies(self, prompts: Sequence[str]) -> list[str]:
        """Return the beginning of the LLM's reply to each prompt inside the template, greedily decoded."""
        if self._model is None:
            self._model = str(self._call("/v1/models", None)["data"][0]["id"])
        with ThreadPoolExecutor(self._concurrency) as pool:
            return list(pool.map(self._ask, prompts))

    def _ask(self, prompt: str) -> str:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question(prompt)}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0.0,
        }
        return str(self._call("/v1/chat/completions", body)["choices"][0]["message"]["content"] or "")

    def _call(self, path: str, body: Mapping[str, Any] | None) -> Any:  # JSON
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310  (http, see above)
                return json.load(response)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} failed: {error}", source=self.url, hint="is the server running?") from error


def _number(digits: str) -> float:
    return float(digits.replace(",", ""))
