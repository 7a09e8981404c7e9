"""Which kind of engine a server is, found by asking it.

lengthwise   vLLM with our scheduler: reads `vllm_xargs` (`xargs_prediction`, `client.request_classes`)
vllm         stock vLLM: orders by `priority`, lower first, under `--scheduling-policy priority`; else ignores it
sglang       orders by `priority`, higher first, under `--enable-priority-scheduling`
openai       any other server: nothing is added to a request
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lengthwise.client.client import ASK_S, EngineClient, EngineError, EngineTimeoutError
from lengthwise.client.scrape import fetch_metrics
from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution, LogT, Point

MARKER: Final = "lengthwise"
"""A request with this name in `vllm_xargs` asks a server for its policy. One with our scheduler replies under the same
name in the `kv_transfer_params` of its answer; to any other it is an ordinary request."""

EngineKind = Literal["lengthwise", "vllm", "sglang", "openai"]

_NAMES: Final = {"vllm": "vLLM", "sglang": "SGLang", "openai": "an OpenAI server"}
_MAX_SIGMA: Final = 5.0  # a spread of e^5 around the median says nothing about a length
_log = logging.getLogger(__name__)


def xargs_prediction(xargs: Mapping[str, Any], cap: int) -> LengthDistribution | None:
    """Return the prediction in `vllm_xargs`, clamped to 1 to `cap` tokens; None if there is none.

    An invalid value is logged and ignored.
    """
    try:
        if "length_mu" in xargs or "length_sigma" in xargs:
            prediction = LogT(float(xargs["length_mu"]), float(xargs["length_sigma"]), cap)
            return replace(prediction, mu=max(0.0, prediction.mu), sigma=min(prediction.sigma, _MAX_SIGMA))
        if "expected_tokens" in xargs:
            return Point.declared(float(xargs["expected_tokens"]), cap)
    except (InputError, KeyError, TypeError, ValueError, OverflowError) as error:
        _log.warning("no usable prediction in vllm_xargs (%s)", error)
    return None


@dataclass(frozen=True, slots=True)
class FoundEngine:
    """What a server reports about itself."""

    kind: EngineKind
    version: str | None = None
    policy: str | None = None
    """The policy of our scheduler in it."""

    def __str__(self) -> str:
        name = f"{_NAMES.get(self.kind, 'vLLM')} {self.version or ''}".strip()
        return f"{name} with our scheduler, policy {self.policy}" if self.kind == "lengthwise" else name


async def find_engine_kind(client: EngineClient) -> FoundEngine:
    """Ask a server what it is: its list of models, /metrics, /version, and vLLM also for its scheduler.

    The last is a completion of one token. EngineError if a server does not answer it in time.
    """
    try:
        models = await client.models()
    except EngineError:  # as one that asks for a client's key
        models = []
    owners = {str(model.get("owned_by")) for model in models}
    metrics = await fetch_metrics(client) or ""
    if "sglang" in owners or "sglang:" in metrics:
        info = await _json(client, "/server_info") or await _json(client, "/get_server_info")  # its older name
        return FoundEngine("sglang", _text(info.get("version")))
    if "vllm" not in owners and "vllm:" not in metrics:
        return FoundEngine("openai")
    version = _text((await _json(client, "/version")).get("version"))
    described = await _ask_scheduler(client, str(models[0]["id"])) if models else None
    if described is None:
        return FoundEngine("vllm", version)
    return FoundEngine("lengthwise", version, _text(described.get("policy")))


async def _ask_scheduler(client: EngineClient, model: str) -> dict[str, Any] | None:
    body = {"model": model, "prompt": "x", "max_tokens": 1, "vllm_xargs": {MARKER: "describe"}}
    try:
        _, reply = await client.fetch("/v1/completions", json.dumps(body).encode(), timeout_s=ASK_S)
        described = (json.loads(reply).get("kv_transfer_params") or {}).get(MARKER)
    except EngineTimeoutError as error:
        raise EngineError(f"{client.name} does not answer a completion of one token in time") from error
    except (ValueError, AttributeError, RecursionError):
        return None
    return described if isinstance(described, dict) else None


async def _json(client: EngineClient, path: str) -> dict[str, Any]:
    """Return the object at a path; empty if there is none."""
    try:
        status, body = await client.fetch(path, timeout_s=ASK_S)
        content = json.loads(body) if status == 200 else {}
    except (EngineError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _text(value: object) -> str | None:
    """Return a text that a server reports about itself, shortened, because it is shown and logged."""
    return value[:40] if isinstance(value, str) and value.isprintable() else None
