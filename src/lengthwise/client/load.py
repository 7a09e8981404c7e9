"""Open-loop load on an OpenAI endpoint from a workload: each request is sent at its arrival time.

Times are measured at the client. TTFT, TPOT, E2E and per-token latency are defined in `simulator.metrics`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from lengthwise.client.client import EngineClient, EngineError, EngineResponse, served_model
from lengthwise.client.sse import DONE, read_events
from lengthwise.errors import InputError
from lengthwise.simulator.metrics import LatencyLimits, Spread, Summary, summarise
from lengthwise.traffic.rows import LIMITS, row_schema
from lengthwise.workloads import Workload

Hints = Literal["none", "oracle"]

_CONNECTS_IN_S: Final = 60.0
_SENT_LIMITS: Final = {"ttft_limit_s": "ttft_s", "per_token_limit_s": "per_token_s", "e2e_limit_s": "slo_s"}

# One token each, with the space before them, in the tokenizers of the common LLMs.
WORDS: Final = (" the", " of", " and", " to", " in", " is", " that", " for", " it", " was", " on", " are", " as")


@dataclass(frozen=True)
class LoadPlan:
    """How a workload is sent."""

    url: str
    model: str | None = None
    """None: the first model that the endpoint serves."""
    speed: float = 1.0
    """2 sends twice as fast as the workload's arrivals."""
    free: bool = False
    """Let answers end by themselves, instead of at the workload's length."""
    hints: Hints = "none"
    """oracle: send each true length, as `nvext.agent_hints.osl`."""
    hide_lengths: bool = False
    """Send the workload's own max_tokens, and the true length where only a simulated engine reads it."""
    timeout_s: float = 600.0
    """Longest time without a byte of an answer."""
    extras: Sequence[Mapping[str, Any]] = ()
    """Further fields of each request's body, by row: sampling, a seed, `vllm_xargs`."""
    api_key: str | None = None
    stop_after: int | None = None
    """Failed requests in a row after which the load ends: the endpoint is dead."""

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise InputError(f"a speed of {self.speed:g}", source="--speed", hint="give a number above 0")
        if not 0 < self.timeout_s < math.inf:
            raise InputError(f"'{self.timeout_s:g}' s", source="--timeout-s", hint="give seconds above 0")


@dataclass(slots=True)
class Sample:
    """One request as its client saw it: fields of `RequestRow`, and what only a load knows.

    Seconds from the start of the load, NaN for what did not happen.
    """

    request: int
    due_s: float
    """When it is sent, by the workload."""
    asked_tokens: int
    arrival_s: float = math.nan
    """When it was sent."""
    first_token_s: float = math.nan
    finished_s: float = math.nan
    output_tokens: int = 0
    input_tokens: int = 0
    """As reported by the endpoint; 0 if it does not."""
    ttft_limit_s: float = math.inf
    per_token_limit_s: float = math.inf
    e2e_limit_s: float = math.inf
    """Its own latency limits, which are sent with it."""
    error: str | None = None
    """The kind of error, if it failed."""
    gaps_s: list[float] = field(default_factory=list, repr=False)
    """Seconds between two events of the stream that hold tokens: inter-token latencies."""


@dataclass
class LoadReport:
    """The measurements so far; complete when the load has ended."""

    requests: int
    plan: LoadPlan
    model: str = ""
    samples: list[Sample] = field(default_factory=list)
    interrupted: bool = False
    rate: float | None = None
    """Offered requests per second; None: the workload's arrivals, infinite: all at once."""
    stopped: bool = False
    """Whether the load ended early because request after request failed."""

    @property
    def failed(self) -> float:
        """The share of sent requests that failed."""
        return sum(sample.error is not None for sample in self.samples) / max(1, len(self.samples))

    @property
    def itl_s(self) -> Spread:
        """Inter-token latency over all tokens of all answers after their first."""
        return Spread.of(np.array([gap for sample in self.served for gap in sample.gaps_s], np.float64))

    def within(self, slo: LatencyLimits) -> float:
        """The share of sent requests, failed ones too, that were served within their limits, else within these."""
        return self._met(slo) / max(1, len(self.samples))

    def goodput(self, slo: LatencyLimits) -> float:
        """Requests per second of makespan that were served within their limits, else within these."""
        makespan = self.summary().makespan_s
        return self._met(slo) / makespan if makespan > 0 else 0.0

    def _met(self, slo: LatencyLimits) -> int:
        own = {latency: np.array([getattr(each, name) for each in self.served]) for name, latency in LIMITS.items()}
        return int(slo.met(**self._columns, own=own).sum())

    @property
    def served(self) -> list[Sample]:
        """Requests answered to the end."""
        return [sample for sample in self.samples if not math.isnan(sample.finished_s)]

    @property
    def errors(self) -> dict[str, int]:
        """How many failed, by kind."""
        return dict(sorted(Counter(s.error for s in self.samples if s.error is not None).items()))

    @property
    def lengths_differ(self) -> int:
        """The number of answers that do not have the requested length."""
        return sum(sample.output_tokens != sample.asked_tokens for sample in self.served)

    @property
    def late_s(self) -> float:
        """Largest delay of sending: above a few ms, this machine is the bottleneck."""
        return max((s.arrival_s - s.due_s for s in self.samples if not math.isnan(s.arrival_s)), default=0.0)

    def summary(self) -> Summary:
        """Latencies and throughput of completed requests."""
        return summarise(**self._columns)

    @property
    def _columns(self) -> dict[str, Any]:
        served = self.served
        return {
            "arrival_s": np.array([sample.arrival_s for sample in served]),
            "first_token_s": np.array([sample.first_token_s for sample in served]),
            "finished_s": np.array([sample.finished_s for sample in served]),
            "output_tokens": np.array([sample.output_tokens for sample in served], np.int64),
        }

    def table(self) -> pa.Table:
        """One row per request that was sent."""
        names = [name for name in Sample.__slots__ if name != "gaps_s"]
        own = {"due_s": pa.float64(), "asked_tokens": pa.int64(), "error": pa.string()}
        schema = pa.schema([(name, own[name]) if name in own else row_schema([name]).field(0) for name in names])
        columns = {name: [getattr(s, name) for s in self.samples] for name in names}
        given = {name: [None if math.isinf(limit) else limit for limit in columns[name]] for name in LIMITS}
        return pa.table(columns | given, schema=schema)


async def run_load(workload: Workload, report: LoadReport, on_end: Callable[[], None]) -> None:
    """Send the workload and fill the report. If cancelled (Ctrl-C), the report keeps what was measured."""
    plan = report.plan
    if workload.has_think_times:
        hint = "simulate it, or leave think_s out"
        raise InputError("requests that wait for answers can only be simulated", field="think_s", hint=hint)
    # One connection per request: on a busy machine an idle one may be closed just as it is reused.
    async with EngineClient(
        plan.url,
        api_key=plan.api_key,
        connect_timeout_s=_CONNECTS_IN_S,
        silence_timeout_s=plan.timeout_s,
        keep=False,
    ) as client:
        report.model = await served_model(client, plan.model)
        began = time.perf_counter()
        due = (workload.arrival_s - workload.arrival_s[0]) / plan.speed if len(workload) else []
        limits = {name: workload.limit(name) for name in LIMITS}
        dead = asyncio.Event()
        in_a_row = 0
        sending: list[asyncio.Task[None]] = []

        def ended(sample: Sample, _: asyncio.Task[None]) -> None:
            nonlocal in_a_row
            in_a_row = 0 if sample.error is None else in_a_row + 1
            if plan.stop_after is not None and in_a_row >= plan.stop_after:
                dead.set()
            on_end()

        try:
            async with asyncio.TaskGroup() as tasks:
                for row, due_s in enumerate(due):
                    await _pause(began + float(due_s) - time.perf_counter(), dead)
                    if dead.is_set():
                        break
                    sample = Sample(row, float(due_s), int(workload.output_tokens[row]))
                    for name, column in limits.items():
                        setattr(sample, name, float(column[row]))
                    report.samples.append(sample)
                    path, body = request_of(workload, row, report.model, plan)
                    task = tasks.create_task(send_request(client, path, body, sample, began))
                    task.add_done_callback(partial(ended, sample))
                    sending.append(task)
                await _all_or_dead(sending, dead)
        except asyncio.CancelledError:
            report.interrupted = True
        report.stopped = dead.is_set()


async def _pause(seconds: float, dead: asyncio.Event) -> None:
    """Sleep, or until the endpoint is dead."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(dead.wait(), seconds)


async def _all_or_dead(sending: Sequence[asyncio.Task[None]], dead: asyncio.Event) -> None:
    """Wait for all requests; cancel the rest if the endpoint is dead."""
    waiter = asyncio.create_task(dead.wait())
    everything = asyncio.gather(*sending, return_exceptions=True)
    either: set[asyncio.Future[Any]] = {everything, waiter}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if not everything.done():
        everything.cancel()


def request_of(workload: Workload, row: int, model: str, plan: LoadPlan) -> tuple[str, bytes]:
    """Return path and body of a request: a chat if the workload has the prompt, else generated words."""
    length = int(workload.output_tokens[row])
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        # null: as many as the context holds, where OpenAI's default for plain completions would be 16.
        "max_tokens": workload.table["max_tokens"][row].as_py() if plan.free or plan.hide_lengths else length,
    }
    if plan.hide_lengths:
        body["vllm_xargs"] = {"simulated_tokens": length}
    elif not plan.free:
        body["ignore_eos"] = True
    if plan.hints == "oracle":
        body["nvext"] = {"agent_hints": {"osl": length}}
    if plan.extras:
        body |= plan.extras[row]
    if own := _declared(workload, row):
        body["vllm_xargs"] = {**body.get("vllm_xargs", {}), **own}
    if priority := int(workload.priority[row]):
        body["priority"] = priority
    prompt = workload.table["prompt"][row].as_py()
    if prompt is None:
        return "/v1/completions", json.dumps({**body, "prompt": _made_up(workload, row)}).encode()
    messages = [{"role": "user", "content": prompt}]
    return "/v1/chat/completions", json.dumps({**body, "messages": messages}).encode()


def _declared(workload: Workload, row: int) -> dict[str, Any]:
    """Return the class and the latency limits of a request, as gateway and plug-in read them."""
    columns = {"request_class": "request_class", **_SENT_LIMITS}
    found = {sent: workload.table[name][row].as_py() for name, sent in columns.items()}
    return {sent: value for sent, value in found.items() if value is not None}


def _made_up(workload: Workload, row: int) -> str:
    """About `input_tokens` tokens of words; prefixes that the workload shares are shared."""
    left = int(workload.input_tokens[row])
    words: list[str] = []
    for block in workload.blocks(row).tolist():
        words += random.Random(block).choices(WORDS, k=min(left - len(words), workload.block_size or 0))  # noqa: S311
    words += random.Random(f"row {row}").choices(WORDS, k=left - len(words))  # noqa: S311
    return "".join(words)


async def send_request(
    client: EngineClient,
    path: str,
    body: bytes,
    sample: Sample,
    began: float,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send a request and read its streamed answer; the sample gets its times, which begin at `began`, or its error."""
    sample.arrival_s = time.perf_counter() - began
    sent = {"content-type": "application/json", **(headers or {})}
    try:
        async with await client.post(path, body, sent) as answer:
            ok = answer.status == 200
            sample.error = await _read(answer, sample, began) if ok else f"http_{answer.status}"
    except EngineError as error:
        sample.error = error.kind
    if sample.error is None:
        sample.finished_s = time.perf_counter() - began
    else:
        sample.first_token_s = math.nan


async def _read(answer: EngineResponse, sample: Sample, began: float) -> str | None:
    """Read a stream to its end; return the kind of error, if any.

    The length is the endpoint's `usage`; without it, the events are counted.
    """
    events = 0
    last = math.nan
    reported: int | None = None
    async for payloads in read_events(answer):
        now = time.perf_counter() - began
        for payload in payloads:
            if payload == DONE:
                sample.output_tokens = events if reported is None else reported
                return None if sample.output_tokens else "empty"
            # After the first token, only events that may hold more than a token are parsed.
            started = not math.isnan(sample.first_token_s)
            if started and b'"usage"' not in payload and b'"error"' not in payload:
                events += 1
                sample.gaps_s.append(now - last)
                last = now
                continue
            event = _parsed(payload)
            if event is None:
                return "malformed"
            if "error" in event:
                return "stream_error"
            usage = event.get("usage") or {}
            reported = usage.get("completion_tokens", reported)
            sample.input_tokens = usage.get("prompt_tokens", sample.input_tokens)
            if _has_token(event):
                events += 1
                if started:
                    sample.gaps_s.append(now - last)
                else:
                    sample.first_token_s = now
                last = now
    return "truncated"


def _parsed(payload: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(payload)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _has_token(event: dict[str, Any]) -> bool:
    """Whether the event has a token: the first event of a chat only names the role."""
    return any(
        choice.get("text") or any(value for key, value in choice.get("delta", {}).items() if key != "role")
        for choice in event.get("choices", ())
    )
