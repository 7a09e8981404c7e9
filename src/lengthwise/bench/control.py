"""Client side of the switch in `engines.vllm_bench`: commands to a running server, and their replies."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

from lengthwise.bench.episodes import ORACLE, Arm, TrafficPlan
from lengthwise.engines.client import EngineClient, served_model
from lengthwise.errors import InputError
from lengthwise.predictors.service import NO_PREDICTOR

_HINT: Final = (
    "start vLLM with --scheduler-cls lengthwise.engines.vllm.LengthwiseScheduler and LENGTHWISE_BENCH_TOKEN=SECRET, "
    "and give the same --token"
)
_POLL_S: Final = 0.5


class BenchServer:
    """A vLLM server whose policy is switched between episodes."""

    def __init__(self, client: EngineClient, url: str, token: str, model: str, headers: dict[str, str]) -> None:
        self.url = url
        self.model = model
        self.token = token
        self._client = client
        self._headers = {"content-type": "application/json", **headers}

    @classmethod
    async def connect(cls, client: EngineClient, url: str, token: str, headers: dict[str, str]) -> BenchServer:
        """Find the served model."""
        return cls(client, url, token, await served_model(client, None), headers)

    async def begin(self, arm: Arm, plan: TrafficPlan, *, patience_s: float = 600.0) -> dict[str, Any]:
        """Switch to an arm once the engine is idle, everything learned cleared and its predictor loaded."""
        command: dict[str, Any] = {
            "do": "begin",
            "policy": arm.policy,
            "predictor": NO_PREDICTOR if arm.predictor == ORACLE else arm.prompt_predictor,
        }
        if arm.probe is not None:
            command["probe"] = arm.probe
        if plan.llm is not None and plan.workload is None and not plan.own_answers:
            command |= {"llm": plan.llm, "scale": plan.scale}
        deadline = time.monotonic() + patience_s
        while True:
            reply = await self._send(command)
            if reply.get("ready"):
                return reply
            if time.monotonic() > deadline:
                what = "does not become idle" if reply.get("busy") else f"does not load predictor {arm.predictor}"
                raise InputError(f"the server {what} in {patience_s:.0f} s", source=self.url, hint="see its log")
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
        answer = await self._client.post("/v1/completions", json.dumps(body).encode(), self._headers)
        try:
            raw = await answer.read()
        finally:
            answer.close()
        if answer.status != 200:
            raise InputError(f"the server answers {answer.status}: {raw[:200]!r}", source=self.url, hint=_HINT)
        reply: dict[str, Any] | None = (json.loads(raw).get("kv_transfer_params") or {}).get("lengthwise")
        if reply is None:
            raise InputError("the server has no bench switch, or another token", source=self.url, hint=_HINT)
        if "error" in reply:
            raise InputError(f"the server refuses: {reply['error']}", source=self.url)
        return reply
