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
from typing import Annotated, Any, Final, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field

from lengthwise.client.client import EngineClient, served_model
from lengthwise.client.offline import Backlog, Sender, SendLimits
from lengthwise.errors import InputError
from lengthwise.files import atomic_path
from lengthwise.policies import Fcfs, Job
from lengthwise.workloads import LengthSamples


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: the key of its prompt, its sample number, and fields of `RequestRow`."""

    prompt: str
    sample: int
    output_tokens: int
    censored: bool
    input_tokens: int


class Journal:
    """A file of answers, open for appending inside `with`; `answers` holds those of earlier runs with these settings.

    An incomplete last line, as a crash leaves it, is dropped.
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
                f"was written with other settings ({_difference(header, self._settings)})",
                source=self._path,
                hint="use the same settings, or remove it to start over",
            )
        self.answers = {(answer.prompt, answer.sample): answer for answer in found}
        # The file is rewritten, so that the next line does not continue an incomplete one.
        with atomic_path(self._path) as temporary:
            lines = [self._settings, *map(asdict, found)]
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self._stream = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def add(self, answer: Answer) -> None:
        """Append an answer and flush."""
        if self._stream is None:
            raise RuntimeError("a Journal is open inside `with` only")
        self._stream.write(json.dumps(asdict(answer)) + "\n")
        self._stream.flush()

    def _read(self) -> tuple[Any, list[Answer]]:
        if not self._path.is_file():
            return None, []
        try:
            lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").split("\n")[:-1]]
            return (lines[0], [Answer(**line) for line in lines[1:]]) if lines else (None, [])
        except (ValueError, TypeError) as error:
            raise InputError("is not a journal of answers", source=self._path, hint="remove it") from error


def _difference(header: Any, settings: dict[str, Any]) -> str:  # any JSON value
    if not isinstance(header, dict):
        return "no header"
    changed = {key: now for key, now in settings.items() if header.get(key) != now}
    return ", ".join(f"{key} {header.get(key)!r}, now {now!r}" for key, now in changed.items())


CHAT: Final = "/v1/chat/completions"
_MESSAGE_CHARACTERS: Final = 200  # of an endpoint's error message


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its source."""

    corpus: str
    prompt_id: str
    text: str
    split: str | None = None

    @property
    def key(self) -> str:
        """Identifies the prompt in the journal."""
        return f"{self.corpus}\n{self.prompt_id}"


class CollectPlan(BaseModel):
    """The endpoint, the sampling settings of its answers, and the limits of a collection."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    url: str = "http://127.0.0.1:8000"
    """The endpoint."""
    out: Path
    """Parquet file of length samples to write."""
    samples: Annotated[int, Field(ge=1)] = 10
    """Answers to each prompt."""
    model: str | None = None
    """Model name [default: the first that is served]."""
    temperature: Annotated[float | None, Field(ge=0)] = None
    """[default: the endpoint's]."""
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    """[default: the endpoint's]."""
    repetition_penalty: Annotated[float | None, Field(gt=0)] = None
    """Above 1 it prevents loops; an extension of vLLM and SGLang."""
    frequency_penalty: float | None = None
    """Above 0 it prevents loops; counts the answer's tokens only."""
    suffix: str = ""
    """Appended to each prompt after a blank line, such as "Think step by step."."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Longer answers are cut and marked as such."""
    at_once: Annotated[int, Field(ge=1)] = 16
    """Concurrent requests."""
    seed: int = 0
    """The seed of each answer is derived from it."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds without data before a request fails."""
    retries: int = 2
    retry_s: float = 1.0
    api_key: str | None = Field(default=None, repr=False)
    """The endpoint's API key."""

    @property
    def journal(self) -> Path:
        """The file that answers are appended to as they arrive."""
        return self.out.with_name(self.out.name + ".partial")

    def settings(self, model: str) -> dict[str, Any]:
        """The settings that a journal must share to be resumed; the number of samples may differ."""
        sampling = self.sampling
        if self.frequency_penalty is None:  # absent from the journals of older versions, which remain usable
            del sampling["frequency_penalty"]
        return {"model": model, **sampling, "suffix": self.suffix, "max_tokens": self.max_tokens, "seed": self.seed}

    @property
    def sampling(self) -> dict[str, float | None]:
        """The sampling parameters; None: the endpoint's default."""
        names = ("temperature", "top_p", "repetition_penalty", "frequency_penalty")
        return {name: getattr(self, name) for name in names}

    def text(self, prompt: Prompt) -> str:
        """The text that is sent: the prompt and the suffix."""
        return f"{prompt.text}\n\n{self.suffix}" if self.suffix else prompt.text


@dataclass
class CollectReport:
    """The state of a collection."""

    prompts: int
    samples: int
    model: str = ""
    resumed: int = 0
    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    """The endpoint's first message for each kind of error, if it sends one."""
    whole_prompts: int = 0
    interrupted: bool = False
    gave_up: bool = False

    @property
    def wanted(self) -> int:
        """The number of answers of a complete collection."""
        return self.prompts * self.samples

    @property
    def capped(self) -> int:
        """The number of answers that were cut off."""
        return sum(answer.censored for answer in self.answers.values())


async def collect(
    prompts: Sequence[Prompt], plan: CollectPlan, report: CollectReport, on_answer: Callable[[], None]
) -> None:
    """Request the answers that the journal lacks, and write the prompts that have all samples to `plan.out`.

    After a cancellation (Ctrl-C) the journal holds the answers so far. It is removed when no answer is missing.
    """
    _check(prompts, plan)
    async with EngineClient(plan.url, api_key=plan.api_key, silence_timeout_s=plan.timeout_s) as client:
        report.model = await served_model(client, plan.model)
        with Journal(plan.journal, plan.settings(report.model)) as journal:
            report.answers = {key: answer for key, answer in journal.answers.items() if answer.sample < plan.samples}
            report.resumed = len(report.answers)
            run = _Collector(client, prompts, plan, report, journal, on_answer)
            try:
                await run.run()
            except asyncio.CancelledError:
                report.interrupted = True
            report.gave_up = run.gave_up
    _write(prompts, plan, report)


class _Collector(Sender):
    """Requests the missing answers in the order of the prompts."""

    def __init__(
        self,
        client: EngineClient,
        prompts: Sequence[Prompt],
        plan: CollectPlan,
        report: CollectReport,
        journal: Journal,
        on_answer: Callable[[], None],
    ) -> None:
        self._prompts, self._plan, self._report, self._journal = prompts, plan, report, journal
        self._on_answer = on_answer
        backlog = Backlog(Fcfs(), engines=1, slots=plan.at_once, more=self._missing())
        super().__init__([client], backlog, SendLimits(plan.retries, plan.retry_s))

    def _missing(self) -> Iterator[Job]:
        places = ((row, sample) for row in range(len(self._prompts)) for sample in range(self._plan.samples))
        for number, (row, sample) in enumerate(places):
            if (self._prompts[row].key, sample) not in self._report.answers:
                yield Job(f"{row} {sample}", float(number))

    def _asked(self, job: Job) -> tuple[Prompt, int]:
        row, sample = map(int, job.id.split())
        return self._prompts[row], sample

    def request(self, job: Job) -> tuple[str, bytes]:
        return CHAT, request_body(*self._asked(job), self._report.model, self._plan)

    def answered(self, job: Job, engine: int, data: bytes) -> int | str:
        result = read_answer(data, *self._asked(job))
        if isinstance(result, str):
            return result
        self._journal.add(result)
        self._report.answers[result.prompt, result.sample] = result
        self._on_answer()
        return result.output_tokens

    def failed(self, job: Job, kind: str, data: bytes) -> None:
        self._report.errors[kind] += 1
        if data and kind.startswith("http_"):
            self._report.messages.setdefault(kind, error_message(data))


def request_body(prompt: Prompt, sample: int, model: str, plan: CollectPlan) -> bytes:
    """Return the body of one request; each sample has a seed, the same in every run."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": plan.text(prompt)}],
        "max_tokens": plan.max_tokens,
        "seed": seed_of(plan.seed, f"{prompt.key}\n{sample}"),
    }
    given = {name: value for name, value in plan.sampling.items() if value is not None}
    return json.dumps(body | given).encode()


def seed_of(seed: int, name: str) -> int:
    """Return the seed of one answer, below 2^31: the same in every run."""
    return xxhash.xxh3_64_intdigest(f"{seed}\n{name}".encode()) >> 33


def error_message(data: bytes) -> str:
    """Return the message of an error response on one line: OpenAI's format, that of an older vLLM, or plain text."""
    text = data.decode("utf-8", errors="replace")
    with contextlib.suppress(ValueError):
        error = json.loads(text)
        error = error.get("error", error) if isinstance(error, dict) else error
        text = str(error.get("message", "")) if isinstance(error, dict) else str(error)
    return " ".join(text.split())[:_MESSAGE_CHARACTERS]


def read_answer(data: bytes, prompt: Prompt, sample: int) -> Answer | str:
    """Return an answer's length, or the kind of error if it has none."""
    try:
        body = json.loads(data)
        reason = body["choices"][0]["finish_reason"]
        usage = body.get("usage") or {}
        tokens, prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "malformed"
    if not isinstance(tokens, int) or not isinstance(prompt_tokens, int):
        return "no_usage"
    if tokens < 1:
        return "empty"
    if reason not in ("stop", "length"):
        return f"ended_by_{reason}"[:40]
    return Answer(prompt.key, sample, tokens, reason == "length", max(1, prompt_tokens))


def _write(prompts: Sequence[Prompt], plan: CollectPlan, report: CollectReport) -> None:
    """Write the prompts that have all samples; remove the journal if that is all prompts."""
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
            "lengths": [[answer.output_tokens for answer in answers] for _, answers in rows],
            "capped": [[answer.censored for answer in answers] for _, answers in rows],
            "prompt": [plan.text(prompt) for prompt, _ in rows],
            "temperature": [plan.temperature] * len(rows),
        }
        LengthSamples.from_table(columns, origin=str(plan.out)).write(plan.out)
    if len(rows) == len(prompts):
        plan.journal.unlink(missing_ok=True)


def _check(prompts: Sequence[Prompt], plan: CollectPlan) -> None:
    if not plan.out.parent.is_dir():
        raise InputError("its folder does not exist", source=plan.out, hint=f"make {plan.out.parent} first")
    if plan.out.exists() and not plan.journal.exists():
        raise InputError("exists and is complete", source=plan.out, hint="name another file, or remove it")
    repeated = [key for key, count in Counter(prompt.key for prompt in prompts).items() if count > 1]
    if repeated or not prompts:
        corpus, _, prompt_id = repeated[0].partition("\n") if repeated else ("", "", "")
        problem = f"prompt_id {prompt_id} of {corpus} occurs twice" if repeated else "there are no prompts"
        raise InputError(problem, source="--prompts", hint="give each prompt once, and at least one")
