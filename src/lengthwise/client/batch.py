"""A file of requests in OpenAI's batch format, and the file of their answers: what is asked, in which order, once.

A line of requests is `{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}`. An answer is
one line, appended as soon as it has arrived, so that the file is complete at any time and a run that was killed goes on
from it: what has a line there is not asked again. The `id` of an answer is a digest of its request, by which a file of
answers to other requests is recognised. Failed requests are in a file of their own, written anew by each run.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

import xxhash
from pydantic import BaseModel, ConfigDict, Field

from lengthwise.client.client import EngineClient, EngineError, served_model
from lengthwise.client.collect import error_message
from lengthwise.client.offline import DEFAULT_AT_ONCE, Backlog, Sender, SendLimits
from lengthwise.defaults import OFFLINE_PREDICTOR
from lengthwise.errors import InputError
from lengthwise.files import append_whole, check_readable
from lengthwise.policies import Job, make_policy
from lengthwise.predictors.contract import LearningPredictor, LengthPredictor, PredictionInput, render_chat
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.prefixes import hash_text

LONGEST_FIRST, SHORTEST_FIRST = "lept", "sjf"
"""The orders that end a batch soonest, and that give the first answers soonest."""
NO_PREDICTOR: Final = "none"
LEARN_AT: Final = (64, 256, 1024)
"""Answers after which the waiting requests are predicted again: a learner keeps 1,024."""
_CHUNK: Final = 256  # requests that are predicted in one go
_PROGRESS_S: Final = 1.0
_BEGINNING: Final = b'{"id": "batch_req_'
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_FORM: Final = '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}'


class BatchRequest(NamedTuple):
    """One line of a file of requests."""

    line: int
    custom_id: str
    id: str
    """A digest of the request; the `id` of its answer."""
    path: str
    model: str | None
    raw: bytes
    """The body, as JSON."""

    @property
    def body(self) -> dict[str, Any]:
        """The body, parsed."""
        found: dict[str, Any] = json.loads(self.raw)
        return found


def read_requests(path: Path, model: str | None = None) -> list[BatchRequest]:
    """Read and check a whole file before anything is asked; `model` replaces that of every line."""
    found: list[BatchRequest] = []
    lines: dict[str, int] = {}
    with check_readable(path).open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                found.append(_request(raw, number, path, model))
                first = lines.setdefault(found[-1].custom_id, number)
                if first != number:
                    raise InputError(
                        f"'{found[-1].custom_id}' is that of line {first}, too",
                        source=path,
                        row=number,
                        field="custom_id",
                        hint="give each request its own",
                    )
    if not found:
        raise InputError("has no requests", source=path, hint=f"one on each line: {_FORM}")
    return found


def _request(raw: bytes, number: int, path: Path, model: str | None) -> BatchRequest:
    def wrong(problem: str, field: str | None = None, hint: str = f"write {_FORM}") -> InputError:
        return InputError(problem, source=path, row=number, field=field, hint=hint)

    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise wrong("is not JSON") from error
    if not isinstance(line, dict):
        raise wrong("is not a JSON object")
    custom_id, url, body = line.get("custom_id"), line.get("url"), line.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise wrong("is missing or not a text", "custom_id")
    if line.get("method", "POST") != "POST":
        raise wrong("is not POST", "method")
    if not isinstance(url, str) or not url.startswith("/v1/"):
        raise wrong("is not a path of the API", "url")
    if not isinstance(body, dict):
        raise wrong("is missing or not an object", "body")
    if body.get("stream"):
        raise wrong("is true", "body.stream", hint="answers of a batch come in one piece: leave it out")
    if model is not None:
        body["model"] = model
    named = body.get("model")
    if named is not None and not isinstance(named, str):
        raise wrong("is not a text", "body.model")
    content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    digest = xxhash.xxh3_128_hexdigest(b"\0".join((custom_id.encode("utf-8", "surrogatepass"), url.encode(), content)))
    return BatchRequest(number, custom_id, f"batch_req_{digest}", url, named, content)


class BatchPlan(BaseModel):
    """The engines of a batch, its order, and its limits."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    engines: Annotated[list[str], Field(min_length=1, json_schema_extra={"repeatable": True})] = [
        "http://127.0.0.1:8080"
    ]
    """URL of an engine or a gateway; repeatable."""
    model: str | None = None
    """Ask this model, whatever the requests name [default: theirs, else the first that is served]."""
    at_once: Annotated[int, Field(ge=1)] = DEFAULT_AT_ONCE
    """Requests in flight on each engine: its slots (max_num_seqs)."""
    first: Annotated[int | None, Field(ge=1)] = None
    """End as soon as this many requests have answers, and order for that: the shortest first."""
    policy: str | None = None
    """Order of the requests [default: lept, the longest first; with --first sjf, the shortest]."""
    predictor: str = OFFLINE_PREDICTOR
    """Predictor of the lengths (`none`: the order of the file)."""
    timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds without data before an attempt fails: answers come in one piece."""
    retries: Annotated[int, Field(ge=0)] = 3
    """Further attempts of a request that fails; 50 failed requests in a row end the run."""
    retry_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds before the first of them; twice as long before each further one."""
    give_up_s: Annotated[float, Field(gt=0)] = 300.0
    """Seconds while no engine takes a request, after which the run ends."""
    api_key: str | None = Field(default=None, repr=False)
    """The engines' API key."""

    @property
    def order(self) -> str:
        """The policy's name."""
        return self.policy or (LONGEST_FIRST if self.first is None else SHORTEST_FIRST)


class BatchFailure(NamedTuple):
    """A request that failed."""

    line: int
    custom_id: str
    kind: str
    message: str


@dataclass
class BatchReport:
    """The state of a batch."""

    requests: int = 0
    answers: int = 0
    """With those of earlier runs."""
    resumed: int = 0
    tokens: int = 0
    """Of the answers of this run."""
    took_s: float = 0.0
    predicted_s: float | None = None
    """The whole run's time, as predicted once a tenth of its answers had arrived."""
    failures: list[BatchFailure] = field(default_factory=list)
    by_engine: dict[str, int] = field(default_factory=dict)
    """Answers of this run."""
    interrupted: bool = False
    gave_up: bool = False
    left_s: float | None = None

    @property
    def missing(self) -> int:
        """Requests without an answer."""
        return self.requests - self.answers


class AnswerFile:
    """The file of answers, open for appending by one process inside `with`; `known` has the ids of its answers.

    What a crash has left of a last line is removed.
    """

    def __init__(self, path: Path, requests: Sequence[BatchRequest]) -> None:
        self._path = path
        self._ids = {request.custom_id: request.id for request in requests}
        self._file = -1
        self.known: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise InputError("is in use", source=self._path, hint="wait for the other batch") from error
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", source=self._path) from error
        try:
            self._read()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            if not os.fstat(self._file).st_size:  # nothing was asked, or nothing answered
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def add(self, answer: Mapping[str, Any]) -> None:
        """Append one answer, whole or not at all; InputError where the disk is full."""
        try:
            append_whole(self._file, _line(answer))
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}",
                source=self._path,
                hint="it has every answer before this one: make room, and the same command goes on",
            ) from error

    def _read(self) -> None:
        complete = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, raw in enumerate(file, start=1):
                try:
                    answer = json.loads(raw)
                    custom_id, answer_id = answer["custom_id"], answer["id"]
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    if not raw.endswith(b"\n") and raw[: len(_BEGINNING)] == _BEGINNING[: len(raw)]:
                        break  # a crash in the middle of a line
                    raise InputError(
                        "is not an answer of a batch", source=self._path, row=number, hint="name another file"
                    ) from error
                if self._ids.get(custom_id) != answer_id:
                    what = "another request than" if custom_id in self._ids else "a request that is not there:"
                    raise InputError(
                        f"answers {what} '{custom_id}'",
                        source=self._path,
                        row=number,
                        hint="the requests or --model have changed: name another file, or use the old ones",
                    )
                self.known.add(answer_id)
                complete += len(raw)
                if not raw.endswith(b"\n"):
                    append_whole(self._file, b"\n")
                    complete += 1
        os.ftruncate(self._file, complete)


def failures_file(out: Path) -> Path:
    """Return the file of failed requests beside a file of answers."""
    return out.with_name(f"{out.stem}.errors{out.suffix}")


class _Batch(Sender):
    """Sends the requests of a file, writes their answers, and learns from them."""

    def __init__(
        self,
        clients: Sequence[EngineClient],
        requests: Sequence[BatchRequest],
        predictions: _Predictions,
        plan: BatchPlan,
        report: BatchReport,
        answers: AnswerFile,
        on_progress: Callable[[], None],
    ) -> None:
        self._backlog = Backlog(make_policy(plan.order), engines=len(clients), slots=plan.at_once)
        super().__init__(clients, self._backlog, SendLimits(plan.retries, plan.retry_s, plan.give_up_s))
        self._requests = {str(request.line): request for request in requests}
        self._predictions, self._plan, self._report, self._answers = predictions, plan, report, answers
        self._model = ""
        self._learning = asyncio.Lock()
        self._on_progress, self._shown_s = on_progress, 0.0
        self._engines = [client.url for client in clients]
        self._began_s = time.monotonic()
        self._asked = len(requests)

    def start(self, model: str) -> None:
        """Queue all requests; `model` is asked where a request names none."""
        self._model = model
        self._began_s = time.monotonic()
        for job in self._predictions.jobs:
            self._backlog.push(job, 0.0)

    def request(self, job: Job) -> tuple[str, bytes]:
        request = self._requests[job.id]
        if request.model is not None:
            return request.path, request.raw
        return request.path, json.dumps({**request.body, "model": self._model}).encode()

    def answered(self, job: Job, engine: int, data: bytes) -> int | str:
        request, report = self._requests[job.id], self._report
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return "malformed"
        self._answers.add(_answer(request, 200, body))
        tokens, censored = _length(body)
        report.answers += 1
        report.tokens += tokens
        report.by_engine[self._engines[engine]] = report.by_engine.get(self._engines[engine], 0) + 1
        self._predictions.observe(job, tokens, censored=censored)
        if report.answers - report.resumed in LEARN_AT:
            self._group.create_task(self._predict_again())
        self._progress()
        if self._plan.first is not None and report.answers >= self._plan.first:
            self.stop()
        return tokens

    def failed(self, job: Job, kind: str, data: bytes) -> None:
        request, status = self._requests[job.id], kind.removeprefix("http_")
        message = error_message(data) if status.isdigit() else ""
        self._report.failures.append(BatchFailure(request.line, request.custom_id, kind, message))
        self._progress()

    async def _predict_again(self) -> None:
        async with self._learning:
            for job, prediction in await asyncio.to_thread(self._predictions.again, list(self._backlog)):
                job.update_prediction(prediction)
                self._backlog.update(job, self._loop.time())

    def _progress(self) -> None:
        now, report = time.monotonic(), self._report
        report.took_s = now - self._began_s
        done = report.answers - report.resumed
        first_tenth = report.predicted_s is None and self._plan.first is None and done * 10 >= self._asked
        if first_tenth or now - self._shown_s >= _PROGRESS_S:
            self._shown_s = now
            report.left_s = self._backlog.left_s(self._loop.time())
            if first_tenth and report.left_s is not None:
                report.predicted_s = report.took_s + report.left_s
        self._on_progress()


class _Predictions:
    """The requests as jobs with predictions; `observe` and `again` let the predictor learn.

    Answers are kept until `again`, which runs in a thread: one thread at a time owns a predictor.
    """

    def __init__(self, requests: Sequence[BatchRequest], predictor: str) -> None:
        self._name = predictor
        self._predictor: LengthPredictor | None = None
        self._inputs: dict[str, PredictionInput] = {}
        self._observed: list[tuple[PredictionInput, int, bool]] = []
        self._requests = requests
        self.jobs: list[Job] = []

    async def make(self, on_progress: Callable[[str, float], None]) -> None:
        """Make the jobs; `on_progress` gets a label and the share that is predicted."""
        if self._name != NO_PREDICTOR:
            on_progress("loading the predictor", 0.0)
            self._predictor = await asyncio.to_thread(resolve_predictor, self._name)
        for begin in range(0, len(self._requests), _CHUNK):
            chunk = self._requests[begin : begin + _CHUNK]
            jobs = [Job(str(each.line), float(each.line)) for each in chunk]
            if self._predictor is not None:
                self._inputs.update({str(each.line): _input(each) for each in chunk})
                await asyncio.to_thread(self._predict, self._predictor, jobs)
            self.jobs += jobs
            on_progress("predicting", len(self.jobs) / len(self._requests))

    def _predict(self, predictor: LengthPredictor, jobs: Sequence[Job]) -> None:
        found = predictor.predict([self._inputs[job.id] for job in jobs])
        for number, job in enumerate(jobs):
            job.update_prediction(found[number])

    def observe(self, job: Job, tokens: int, *, censored: bool) -> None:
        """Keep the length of an answer to learn from."""
        request = self._inputs.pop(job.id, None)
        if request is not None and tokens:
            self._observed.append((request, tokens, censored))

    def again(self, waiting: Sequence[Job]) -> list[tuple[Job, Any]]:
        """Learn from the answers, and predict these requests again."""
        predictor = self._predictor
        if not isinstance(predictor, LearningPredictor):
            return []
        observed, self._observed = self._observed, []
        for each, tokens, censored in observed:
            predictor.observe(each, tokens, censored=censored)
        asked = [(job, self._inputs[job.id]) for job in waiting if job.id in self._inputs]
        if not asked:
            return []
        found = predictor.predict([request for _, request in asked])
        return [(job, found[number]) for number, (job, _) in enumerate(asked)]


async def run_batch(
    requests: Sequence[BatchRequest],
    out: Path,
    plan: BatchPlan,
    report: BatchReport,
    on_progress: Callable[[str, float], None],
) -> None:
    """Ask the requests that `out` does not answer, and fill the report. If cancelled (Ctrl-C), `out` keeps the answers.

    `on_progress` gets a label and the share of the run's time that is over, as predicted.
    """
    report.requests = len(requests)
    with AnswerFile(out, requests) as answers:
        left = [request for request in requests if request.id not in answers.known]
        report.resumed = report.answers = len(answers.known)
        failures_file(out).unlink(missing_ok=True)
        if not left or (plan.first is not None and report.answers >= plan.first):
            return
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    EngineClient(url, api_key=plan.api_key, silence_timeout_s=plan.timeout_s)
                )
                for url in plan.engines
            ]
            model = await _check_engines(clients, left, plan)
            predictions = _Predictions(left, plan.predictor)
            run = _Batch(clients, left, predictions, plan, report, answers, lambda: on_progress(*_shown(report, plan)))
            try:
                await predictions.make(on_progress)
                run.start(model)
                await run.run()
            except asyncio.CancelledError:
                report.interrupted = True
            finally:
                report.gave_up = run.gave_up
                report.failures.sort()
                _write_failures(out, {request.line: request for request in left}, report.failures)


async def _check_engines(clients: Sequence[EngineClient], requests: Iterable[BatchRequest], plan: BatchPlan) -> str:
    """Return the model for requests that name none; InputError unless every engine serves all that are named."""
    named: dict[str, int] = {}
    for request in requests:
        if request.model is not None:
            named.setdefault(request.model, request.line)
    default = ""
    for client in clients:
        default = default or await served_model(client, plan.model, "--engine")
        try:
            served = {str(each["id"]) for each in await client.models()}
        except EngineError as error:
            raise InputError(str(error), source="--engine", hint="start it, or correct the URL") from error
        for model, line in named.items():
            if served and model not in served:
                raise InputError(
                    f"{client.url} does not serve '{model}', which line {line} asks for",
                    source="--engine",
                    hint=f"it serves {', '.join(sorted(served)[:5])}: name one with --model",
                )
    return default


def _shown(report: BatchReport, plan: BatchPlan) -> tuple[str, float]:
    wanted = report.requests if plan.first is None else min(report.requests, plan.first)
    label = f"{report.answers:,} of {wanted:,}"
    if report.failures:
        label += f", {len(report.failures):,} failed"
    done = (report.answers - report.resumed + len(report.failures)) / max(1, wanted - report.resumed)
    if plan.first is None and report.left_s is not None:
        done = report.took_s / max(1e-9, report.took_s + report.left_s)
    return label, min(done, 1.0)


def _input(request: BatchRequest) -> PredictionInput:
    """Return what a predictor reads of a request; of one that it cannot read, nothing."""
    body = request.body
    limit = next((body[name] for name in _LIMITS if type(body.get(name)) is int and body[name] > 0), None)
    try:
        text = _text(body)
    except (AttributeError, LookupError, TypeError, ValueError):  # the engine will refuse it
        text = ""
    return PredictionInput(text, request.model or "", limit, blocks=hash_text(text))


def _text(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return render_chat(body["messages"], body.get("tools") or ())
    asked = body.get("prompt", body.get("input", ""))
    if isinstance(asked, list) and asked and isinstance(asked[0], dict):
        return render_chat(asked)
    asked = asked[0] if isinstance(asked, list) and len(asked) == 1 else asked
    return asked if isinstance(asked, str) else ""


def _length(body: Any) -> tuple[int, bool]:  # any JSON value
    """Return the tokens of an answer, 0 where it does not say, and whether it was cut off."""
    try:
        usage = body.get("usage") or {}
        tokens = usage.get("completion_tokens", usage.get("output_tokens", 0))
        choices = body.get("choices") or [{}]
        cut = choices[0].get("finish_reason") == "length" or body.get("status") == "incomplete"
    except (AttributeError, LookupError, TypeError):
        return 0, False
    return (tokens, cut) if type(tokens) is int and tokens > 0 else (0, False)


def _answer(request: BatchRequest, status: int, body: Any) -> dict[str, Any]:  # any JSON value
    request_id = body.get("id") if isinstance(body, dict) else None
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": request.id, "custom_id": request.custom_id, "response": response, "error": None}


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _write_failures(out: Path, requests: Mapping[int, BatchRequest], failures: Sequence[BatchFailure]) -> None:
    if not failures:
        return
    lines = b"".join(
        _line(
            {
                "id": requests[each.line].id,
                "custom_id": each.custom_id,
                "response": None,
                "error": {"code": each.kind, "message": each.message, "line": each.line},
            }
        )
        for each in failures
    )
    path = failures_file(out)
    try:
        path.write_bytes(lines)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=path) from error
