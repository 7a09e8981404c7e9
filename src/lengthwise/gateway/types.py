"""What the parts of the gateway share: a request and its answer, its outcome, and the gateway's own paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lengthwise.client.client import EngineResponse
from lengthwise.gateway.bodies import CompletionBody
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.streaming import AnswerMeter, Caller
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job
from lengthwise.predictors.contract import PredictionInput
from lengthwise.traffic.rows import PredictionSource, RequestOutcome

if TYPE_CHECKING:
    from opentelemetry.trace import Span  # of an extra

PREFIX: Final = "/lengthwise/v1"
"""The paths of the admin API begin with it."""
PAGE_PATHS: Final = {"/": "index.html", "/dashboard.css": "dashboard.css", "/dashboard.js": "dashboard.js"}
"""The static files of the dashboard, which hold no data."""


@dataclass(slots=True)
class Call:
    """One request and its answer."""

    job: Job
    body: CompletionBody
    raw: bytes
    caller: Caller
    request_id: bytes
    meter: AnswerMeter
    history: LengthDistribution | None
    """The prediction from the LLM's history at its arrival."""
    ttft_s: float | None = None
    """Seconds from its slot on an engine to the first token; None if unknown."""
    refused_by: list[GatewayEngine] = field(default_factory=list)
    """Engines that have refused it or lost it before an answer; each time it was retried."""
    tenant: str = ""
    """The tenant of its key."""
    first_byte_s: float | None = None
    """Seconds from its arrival to the first byte of its answer."""
    engine: str | None = None
    """The engine that it was sent to last."""
    pinned: GatewayEngine | None = None
    """The only engine that it may run on, which stores the answer that it continues."""
    follows: GatewayEngine | None = None
    """The engine that generates on after the answer: of a response in the background."""
    once: bool = False
    """Whether its body may not be sent to an engine again: it was, or may not be executed twice."""
    moves: bool = False
    """Whether it is being taken from an engine that hangs."""
    answer: EngineResponse | None = None
    """The engine's answer, once its head has arrived."""
    failed: bool = False
    """Whether it ended in an error that is not its client's disconnect."""
    outcome: RequestOutcome | None = None
    """How it ended; None while it is open, or where its client disconnected."""
    span: Span | None = None
    """Its OpenTelemetry span, where traces are made."""
    hinted: bool = False
    """Whether the client declares the length, and that counts."""
    claimed: float | None = None
    """The tokens that the client declares."""
    question: Callable[[], PredictionInput] | None = None
    """The input for the predictor, until a prediction is requested."""

    @property
    def source(self) -> PredictionSource:
        """The source of its prediction."""
        if self.hinted:
            return "hint"
        if self.job.prediction is None:
            return "prior"
        return "history" if self.job.prediction is self.history else "predictor"
