"""All that can be set on a gateway, checked once."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lengthwise.engines.client import engine_url
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.service import DEFAULT_PREDICTOR, known_predictor
from lengthwise.routers import make_router


def _known_policy(name: str) -> str:
    return make_policy(name).name


def _known_router(name: str | None) -> str | None:
    return None if name is None else make_router(name).name


def _distinct(urls: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(urls)) < len(urls):
        raise InputError("the same engine is given twice", hint="name each engine once")
    return urls


class GatewayConfig(BaseModel):
    """What a gateway does and before which engines. Times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engines: Annotated[
        tuple[Annotated[str, AfterValidator(engine_url)], ...], Field(min_length=1), AfterValidator(_distinct)
    ]
    policy: Annotated[str, AfterValidator(_known_policy)] = "lengthwise"
    predictor: Annotated[str, AfterValidator(known_predictor)] = DEFAULT_PREDICTOR
    """What predicts the lengths of answers: a packaged predictor, a model file, or none."""
    router: Annotated[str | None, AfterValidator(_known_router)] = None
    """What chooses among engines; ours where it is not given."""
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)

    in_flight: int = Field(64, ge=1)
    """Requests that run at once on one engine; the others are held here, in the policy's order."""
    max_waiting: int = Field(10_000, ge=0)
    """Requests held at once; one more is refused with 429."""
    max_body_bytes: int = Field(64 << 20, ge=1)
    forward_hints: bool = True
    """Send a client's hint to the engine as `vllm_xargs.expected_tokens`; off for engines that reject unknown fields."""
    forward_predictions: bool = False
    """Send the predicted length to the engine as `vllm_xargs.length_mu` and `length_sigma`; for engines that run the
    lengthwise scheduler, which then predict nothing themselves."""
    prediction_wait_s: float = Field(0.02, ge=0)
    """With `forward_predictions`: longest time a request waits for its prediction once an engine has a slot for it."""

    stream_usage: bool = True
    """Ask engines how long a streamed answer was, for calibration; clients who did not ask are not told."""

    silence_timeout_s: float = Field(600.0, gt=0)
    """How long an engine may send nothing before its request is given up with 504."""
    hold_timeout_s: float = Field(30.0, ge=0)
    """How long a request waits while no engine is up before it is given up with 503."""
    connect_timeout_s: float = Field(5.0, gt=0)
    health_interval_s: float = Field(1.0, gt=0)
    shutdown_timeout_s: int = Field(30, ge=0)
    """How long a stopping gateway lets its requests finish."""
    remote_control: bool = False
    """Let others than this machine change the policy."""

    @property
    def chosen_router(self) -> str | None:
        """The router in use. With one engine there is nothing to choose, so nothing is loaded nor predicted for it."""
        return None if len(self.engines) == 1 else self.router or "lengthwise"

    @classmethod
    def from_flags(cls, **flags: Any) -> Self:  # noqa: ANN401
        """The same, with a mistake told in the words of the command line."""
        try:
            return cls(**flags)
        except ValidationError as error:
            first = error.errors()[0]
            cause = first.get("ctx", {}).get("error")
            if isinstance(cause, InputError):
                raise cause from None
            name = str(first["loc"][0])
            given = first["input"]
            raise InputError(f"'{given}' will not do", source=_flag(name), hint=first["msg"]) from None


def _flag(field: str) -> str:
    words = {"engines": "engine"}.get(field, field).removesuffix("_s").replace("_", "-")
    return f"--{words}"
