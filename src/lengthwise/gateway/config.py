"""The settings of a gateway, validated once."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from lengthwise.engines.client import engine_url, without_credentials
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.resolve import DEFAULT_PREDICTOR
from lengthwise.predictors.service import known_predictor
from lengthwise.routers import make_router


def _known_policy(name: str) -> str:
    make_policy(name)
    return name


def _known_router(name: str | None) -> str | None:
    if name is not None:
        make_router(name)
    return name


def _distinct(urls: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(map(without_credentials, urls))) < len(urls):
        raise InputError("an engine is given twice", hint="name each engine once")
    return urls


class GatewayConfig(BaseModel):
    """The settings of a gateway and its engines. Times in seconds. `lengthwise serve` has an option for each."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    engines: Annotated[
        tuple[Annotated[str, AfterValidator(engine_url)], ...], Field(min_length=1), AfterValidator(_distinct)
    ]
    """URL of an OpenAI-compatible engine."""
    policy: Annotated[str, AfterValidator(_known_policy)] = "lengthwise"
    """Order of waiting requests (docs/reference/policies.md)."""
    router: Annotated[str | None, AfterValidator(_known_router)] = None
    """Choice among engines (docs/reference/routing.md); lengthwise where there are several."""
    predictor: Annotated[str, AfterValidator(known_predictor)] = DEFAULT_PREDICTOR
    """Length predictor: fast, default, none, or a model file (.lw)."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes any free port."""

    in_flight: Annotated[int, Field(ge=1)] = 64
    """Requests that run at once on one engine; the others wait here, in the policy's order."""
    admission_quantile: Annotated[float | None, Field(gt=0, lt=1)] = None
    """Send a request only where the predicted peak of KV memory fits, by this quantile of lengths (such as 0.9); needs
    engines that report their KV memory in /metrics. Without it only --in-flight limits."""
    max_waiting: Annotated[int, Field(ge=0)] = 10_000
    """Requests that wait at once; one more is refused with 429."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 50 << 20
    """Largest request body; a larger one is refused with 413."""
    max_held_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    """Bytes of all bodies that are held at once, waiting and running; a request beyond is refused with 503."""
    max_header_bytes: Annotated[int, Field(ge=1)] = 64 << 10
    """Largest head of a request; a larger one is refused with 431."""
    max_connections: Annotated[int | None, Field(ge=1)] = None
    """Open connections of clients; one more is refused with 503. Without it half the limit of open files."""
    forward_hints: bool = True
    """Send a client's hint to the engine as `vllm_xargs.expected_tokens`; off for engines that reject it."""
    forward_predictions: bool = False
    """Send the predicted length to engines that run our scheduler, as `vllm_xargs.length_mu` and `length_sigma`; they
    predict only the requests that carry none. Always on for the embedded engine."""
    stream_usage: bool = True
    """Ask engines for the length of streamed answers (`stream_options`); removed for clients that did not ask."""

    header_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """Seconds until the head of a request has arrived."""
    body_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds until the body of a request, or 64 KiB more of it, has arrived."""
    write_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that a client may leave its answer unread before its connection is closed."""
    silence_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds an engine may send nothing before its request fails with 504."""
    first_byte_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds until the first byte of a streamed answer before its request fails with 504. An answer in one piece
    arrives with its last token: for it only --silence-timeout counts."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """Failed answers in a row (5xx, broken off, timed out) after which an engine gets no request for a while."""
    breaker_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds until such an engine is tried again with one request; twice as long after each failed trial, at most 32
    times."""
    hold_timeout_s: Annotated[float, Field(ge=0)] = 30.0
    """Seconds a request waits while no engine is up before it fails with 503."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds to connect to an engine."""
    health_interval_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds between two health checks of an engine."""
    shutdown_timeout_s: Annotated[int, Field(ge=0)] = 30
    """Seconds a stopping gateway lets running requests finish."""
    remote_control: bool = False
    """Accept policy changes from other machines."""

    @property
    def chosen_router(self) -> str | None:
        """The router in use; None with one engine."""
        return None if len(self.engines) == 1 else self.router or "lengthwise"
