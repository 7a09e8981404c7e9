"""Answer lengths of a served LLM: each prompt is sent several times, and the result has CASTILLO's columns.

Every answer is appended to a journal beside the output as soon as it arrives, so that an interrupted run resumes.
Lengths are the endpoint's count (`usage.completion_tokens`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, Self

import xxhash

from lengthwise.engines.client import EngineClient, EngineError, served_model
from lengthwise.errors import InputError
from lengthwise.workloads import LengthSamples
from lengthwise.workloads.datasets import with_sentence
from lengthwise.workloads.files import atomic_path


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: to which prompt, the how-manieth, and how long it was."""

    prompt: str
    sample: int
    tokens: int
    capped: bool
    input_tokens: int


class Journal:
    """Open for more answers inside `with`; what an earlier run with the same settings left is in `answers`.

    A last line cut short by a crash is forgotten.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self._settings = settings
        self._stream: TextIOWrapper | None = None
        self.answers: dict[tuple[str, int], Answer] = {}

    def __enter__(self) -> Self:
        header, found = self._read()
        if header is not None and header != self._settings:
            raise InputError(
                f"was begun with other settings ({_difference(header, self._settings)})",
                source=self._path,
                hint="ask for the same again, or remove it to begin afresh",
            )
        self.answers = {(answer.prompt, answer.sample): answer for answer in found}
        # Written anew, since a line that was cut short must not run into the next.
        with atomic_path(self._path) as fresh:
            lines = [self._settings, *map(asdict, found)]
            fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self._stream = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def add(self, answer: Answer) -> None:
        """Keep one more, at once."""
        if self._stream is None:
            raise RuntimeError("a Journal is written inside `with`")
        self._stream.write(json.dumps(asdict(answer)) + "\n")
        self._stream.flush()

    def _read(self) -> tuple[Any, list[Answer]]:
        if not self._path.is_file():
            return None, []
        try:
            pieces = self._path.read_text(encoding="utf-8").split("\n")[:-1]
            lines = [json.loads(piece) for piece in pieces]
            return (lines[0], [Answer(**line) for line in lines[1:]]) if lines else (None, [])
        except (ValueError, TypeError) as error:
            raise InputError("is not a journal of answers", source=self._path, hint="remove it") from error


def _difference(begun: Any, wanted: dict[str, Any]) -> str:  # noqa: ANN401  (whatever the file holds)
    if not isinstance(begun, dict):
        return "no header"
    return ", ".join(f"{key} {begun.get(key)!r}, now {now!r}" for key, now in wanted.items() if begun.get(key) != now)


_RETRY_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_GIVE_UP_AFTER: Final = 50  # failures without one answer between them: nobody is there any more

_SAID_AT_MOST: Final = 200  # characters of an endpoint's complaint


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to ask, and where it comes from."""

    corpus: str
    prompt_id: str
    text: str
    split: str | None = None

    @property
    def key(self) -> str:
        """Its name in the journal."""
        return f"{self.corpus}\n{self.prompt_id}"


@dataclass(frozen=True)
class CollectPlan:
    """How to ask."""

    url: str
    out: Path
    model: str | None = None
    """None: the first that the endpoint serves."""
    samples: int = 10
    temperature: float | None = None
    """None: the endpoint's own default."""
    top_p: float | None = None
    repetition_penalty: float | None = None
    """Above 1 it keeps small LLMs out of loops; an extension of vLLM and SGLang, so it is only sent where given."""
    frequency_penalty: float | None = None
    """Above 0 likewise; of the answer's own tokens only."""
    suffix: str = ""
    """Put after each prompt, a blank line between."""
    max_tokens: int = 1024
    seed: int = 0
    at_once: int = 16
    retries: int = 2
    retry_s: float = 1.0
    timeout_s: float = 600.0

    @property
    def journal(self) -> Path:
        """Where answers go as they come."""
        return self.out.with_name(self.out.name + ".partial")

    def settings(self, model: str) -> dict[str, Any]:
        """What a journal must agree in to be gone on with; more samples per prompt may be asked for."""
        asked = {"temperature": self.temperature, "top_p": self.top_p, "repetition_penalty": self.repetition_penalty}
        if self.frequency_penalty is not None:  # an option that came later: a journal without it can be gone on with
            asked["frequency_penalty"] = self.frequency_penalty
        return {"model": model, **asked, "suffix": self.suffix, "max_tokens": self.max_tokens, "seed": self.seed}

    def asked(self, prompt: Prompt) -> str:
        """The text that is sent."""
        return with_sentence(prompt.text, self.suffix)


@dataclass
class CollectReport:
    """What was collected so far."""

    prompts: int
    samples: int
    model: str = ""
    resumed: int = 0
    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    """What the endpoint first said to each kind of error, where it said anything."""
    whole_prompts: int = 0
    interrupted: bool = False
    gave_up: bool = False

    @property
    def wanted(self) -> int:
        """Answers there are once all is collected."""
        return self.prompts * self.samples

    @property
    def capped(self) -> int:
        """Answers that were cut off."""
        return sum(answer.capped for answer in self.answers.values())


async def collect(
    prompts: Sequence[Prompt], plan: CollectPlan, report: CollectReport, on_answer: Callable[[], None]
) -> None:
    """Ask what the journal does not have yet, and write the prompts that are whole to `plan.out`.

    Cancelled (Ctrl-C), the journal keeps what came. It goes away when nothing is missing.
    """
    _check(prompts, plan)
    async with EngineClient(plan.url, silence_timeout_s=plan.timeout_s) as client:
        report.model = await served_model(client, plan.model)
        with Journal(plan.journal, plan.settings(report.model)) as journal:
            report.answers = {key: each for key, each in journal.answers.items() if each.sample < plan.samples}
            report.resumed = len(report.answers)
            run = _Run(client, plan, report, journal, on_answer)
            try:
                await run.ask(prompts)
            except asyncio.CancelledError:
                report.interrupted = True
    _write(prompts, plan, report)


class _Run:
    """A few askers that share one list of questions."""

    def __init__(
        self,
        client: EngineClient,
        plan: CollectPlan,
        report: CollectReport,
        journal: Journal,
        on_answer: Callable[[], None],
    ) -> None:
        self._client, self._plan, self._report, self._journal = client, plan, report, journal
        self._on_answer = on_answer
        self._failed_in_a_row = 0

    async def ask(self, prompts: Sequence[Prompt]) -> None:
        missing = (
            (prompt, sample)
            for prompt in prompts
            for sample in range(self._plan.samples)
            if (prompt.key, sample) not in self._report.answers
        )
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._plan.at_once):
                tasks.create_task(self._asker(missing))

    async def _asker(self, missing: Iterator[tuple[Prompt, int]]) -> None:
        for prompt, sample in missing:
            told = await self._with_retries(prompt, sample)
            if isinstance(told, Answer):
                self._failed_in_a_row = 0
                self._journal.add(told)
                self._report.answers[told.prompt, told.sample] = told
                self._on_answer()
            else:
                self._failed_in_a_row += 1
                self._report.errors[told] += 1
            if self._failed_in_a_row >= _GIVE_UP_AFTER:
                self._report.gave_up = True
                return

    async def _with_retries(self, prompt: Prompt, sample: int) -> Answer | str:
        for attempt in range(self._plan.retries + 1):
            told, again = await self._once(prompt, sample)
            if isinstance(told, Answer) or not again or attempt == self._plan.retries:
                break
            await asyncio.sleep(self._plan.retry_s * 2**attempt)
        return told

    async def _once(self, prompt: Prompt, sample: int) -> tuple[Answer | str, bool]:
        """An answer or the kind of fault, and whether asking again may help."""
        body = request_body(prompt, sample, self._report.model, self._plan)
        try:
            answer = await self._client.post("/v1/chat/completions", body, {"content-type": "application/json"})
            try:
                if answer.status != 200:
                    kind = f"http_{answer.status}"
                    self._report.said.setdefault(kind, told_why(await answer.read()))
                    return kind, answer.status in _RETRY_STATUS
                return read_answer(await answer.read(), prompt, sample), False
            finally:
                answer.close()
        except EngineError as error:
            return error.kind, True


def request_body(prompt: Prompt, sample: int, model: str, plan: CollectPlan) -> bytes:
    """One question; each sample has its own seed, the same in every run."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": plan.asked(prompt)}],
        "max_tokens": plan.max_tokens,
        "seed": xxhash.xxh3_64_intdigest(f"{plan.seed}\n{prompt.key}\n{sample}".encode()) >> 33,
    }
    told = {
        "temperature": plan.temperature,
        "top_p": plan.top_p,
        "repetition_penalty": plan.repetition_penalty,
        "frequency_penalty": plan.frequency_penalty,
    }
    return json.dumps(body | {name: value for name, value in told.items() if value is not None}).encode()


def told_why(data: bytes) -> str:
    """What an endpoint says of an error, on one line: OpenAI's shape, an older one of vLLM's, or plain text."""
    text = data.decode("utf-8", errors="replace")
    with contextlib.suppress(ValueError):
        told = json.loads(text)
        told = told.get("error", told) if isinstance(told, dict) else told
        text = str(told.get("message", "")) if isinstance(told, dict) else str(told)
    return " ".join(text.split())[:_SAID_AT_MOST]


def read_answer(data: bytes, prompt: Prompt, sample: int) -> Answer | str:
    """The length of an answer, or what is wrong with it."""
    try:
        told = json.loads(data)
        reason = told["choices"][0]["finish_reason"]
        usage = told.get("usage") or {}
        tokens, given = usage.get("completion_tokens"), usage.get("prompt_tokens")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "malformed"
    if not isinstance(tokens, int) or not isinstance(given, int):
        return "no_usage"
    if tokens < 1:
        return "empty"
    if reason not in ("stop", "length"):
        return f"ended_by_{reason}"[:40]
    return Answer(prompt.key, sample, tokens, reason == "length", max(1, given))


def _write(prompts: Sequence[Prompt], plan: CollectPlan, report: CollectReport) -> None:
    """The prompts with all their samples; the journal stays while any is missing."""
    rows = []
    for prompt in prompts:
        found = [report.answers.get((prompt.key, sample)) for sample in range(plan.samples)]
        answers = [answer for answer in found if answer is not None]
        if len(answers) == plan.samples:
            rows.append((prompt, answers))
    report.whole_prompts = len(rows)
    if rows:
        columns = {
            "corpus": [prompt.corpus for prompt, _ in rows],
            "split": [prompt.split for prompt, _ in rows],
            "prompt_id": [prompt.prompt_id for prompt, _ in rows],
            "llm": [report.model] * len(rows),
            "input_tokens": [answers[0].input_tokens for _, answers in rows],
            "lengths": [[answer.tokens for answer in answers] for _, answers in rows],
            "capped": [[answer.capped for answer in answers] for _, answers in rows],
            "prompt": [plan.asked(prompt) for prompt, _ in rows],
            "temperature": [plan.temperature] * len(rows),
        }
        LengthSamples.from_table(columns, origin=str(plan.out)).write(plan.out)
    if len(rows) == len(prompts):
        plan.journal.unlink(missing_ok=True)


def _check(prompts: Sequence[Prompt], plan: CollectPlan) -> None:
    if not plan.out.parent.is_dir():
        raise InputError("its folder does not exist", source=plan.out, hint=f"make {plan.out.parent} first")
    if plan.out.exists() and not plan.journal.exists():
        raise InputError("is there already, and whole", source=plan.out, hint="name another file, or remove it")
    twice = [key for key, count in Counter(prompt.key for prompt in prompts).items() if count > 1]
    if twice or not prompts:
        corpus, _, prompt_id = twice[0].partition("\n") if twice else ("", "", "")
        problem = f"prompt_id {prompt_id} of {corpus} is there twice" if twice else "there are no prompts"
        raise InputError(problem, source="--prompts", hint="give each prompt once, and at least one")
