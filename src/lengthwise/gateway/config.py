"""The settings of a gateway: one tree for the configuration file, the environment and the options of `serve`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    model_validator,
)

from lengthwise.client.client import engine_url, without_credentials
from lengthwise.client.request_classes import ClassConfig, LatencyLimitsConfig, Priority
from lengthwise.defaults import ADMISSION_QUANTILE, DEFAULT_POLICY, DEFAULT_PREDICTOR, DEFAULT_ROUTER, DEFAULT_SLOTS
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.model_file import SUFFIX
from lengthwise.predictors.service import RETIRED_MEMORY, known_predictor
from lengthwise.predictors.state_file import STATE_CACHE, known_state
from lengthwise.routers import make_router
from lengthwise.settings import read_yaml, validated
from lengthwise.traffic.log import PREDICTOR_NAME

ConfiguredKind = Literal["auto", "lengthwise", "vllm", "sglang", "openai"]

DEFAULT_TENANT: Final = "default"
"""The tenant of requests without a key."""

SIMULATED: Final = "simulated:"
"""Begins the specification of simulated engines, in place of a URL."""

_OBSERVING: Final = {
    "policy": "fcfs",
    "in_flight": 1_000_000,
    "admission_quantile": 0.0,
    "retries": 0,
    "hold_timeout_s": 0.0,
}
"""The settings of a gateway that holds nothing back."""

RETIRED: Final = {"learn": "is now `log`", "learn_bytes": "is now `log_bytes`", "memory": RETIRED_MEMORY}
"""Fields that are gone, and what is there now."""

_SECRET_CHARACTERS: Final = 32
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_FORWARDED: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._~:@+=-]+)+(?:/\*)?")
_OWN_PATHS: Final = ("/lengthwise/", "/health", "/ready", "/metrics", "/dashboard.", "/v1/models")
_HOST: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NO_CLASS: Final = ClassConfig()


def _known_policy(name: str) -> str:
    make_policy(name)
    return name


def _known_router(name: str | None) -> str | None:
    if name is not None:
        make_router(name)
    return name


def _engine_address(text: str) -> str:
    if not text.strip().startswith(SIMULATED):
        return engine_url(text)
    from lengthwise.simulator.live import SimulatedFleet  # loads the simulator

    SimulatedFleet.parse(text.strip())
    return text.strip()


def _collector_url(text: str) -> str:
    try:
        return engine_url(text)
    except InputError:
        raise InputError("not the URL of a collector", hint="give one like http://127.0.0.1:4318") from None


def _long_secret(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < _SECRET_CHARACTERS:
        hint = "make one with: openssl rand -hex 32"
        raise InputError(f"has fewer than {_SECRET_CHARACTERS} characters", hint=hint)
    return secret


def _listed(value: Any) -> Any:  # not validated yet
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _known_paths(paths: list[str]) -> list[str]:
    for path in paths:
        if not _FORWARDED.fullmatch(path) or path.startswith(_OWN_PATHS):
            hint = "give one like /v1/images/generations, or /v1/images/* for all below"
            raise InputError(f"'{path[:80]}' is not a path to forward", hint=hint)
    return paths


def _known_hosts(hosts: list[str]) -> list[str]:
    for host in hosts:
        if not _HOST.fullmatch(host):
            try:
                ip_network(host)
            except ValueError:
                hint = "give a name, *.NAME, or a network like 10.0.0.0/8"
                raise InputError(f"'{host[:80]}' is not a host", hint=hint) from None
    return hosts


def _plain_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(f"'{name[:80]}' is not a name", hint="use letters, digits, '.', '_' and '-', at most 64")
    return name


def _with_name(value: Any, name: str) -> Any:  # not validated yet
    return {"name": name, **value} if isinstance(value, Mapping) else {"name": name} if value is None else value


def _named(values: Any) -> Any:
    """Give each section of a mapping its key as its name."""
    return {k: _with_name(v, str(k)) for k, v in values.items()} if isinstance(values, Mapping) else values


def _empty_is_default(values: Any) -> Any:
    """Read `name:` without anything below as a section of defaults."""
    return {k: {} if v is None else v for k, v in values.items()} if isinstance(values, Mapping) else values


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EngineConfig(_Section):
    """One engine; a plain URL stands for an engine with defaults."""

    url: Annotated[str, AfterValidator(_engine_address)]
    """Its URL, with or without /v1, or `simulated:` and a fleet. Credentials in it (http://user:password@host) are sent
    as basic authentication, in place of a client's."""
    name: Annotated[str, AfterValidator(_plain_name)] | None = None
    """Its name in answers, metrics and logs; engine-0, engine-1 and so on by its place if it has none."""
    kind: ConfiguredKind = "auto"
    """What the engine is; `auto` asks it."""
    in_flight: Annotated[int, Field(ge=1)] | None = None
    """Requests that run at once on it; the gateway's `in_flight` if not given."""
    api_key: SecretStr | None = None
    """Sent to the engine as `Authorization: Bearer`, in place of the client's."""

    @property
    def simulated(self) -> bool:
        """Whether the gateway runs this engine itself, in the simulator."""
        return self.url.startswith(SIMULATED)


class ModelConfig(LatencyLimitsConfig):
    """Other names of a model, its latency limits, and what serves its requests when no engine can."""

    aliases: tuple[str, ...] = ()
    """Names that clients may use for it."""
    fallbacks: tuple[str, ...] = ()
    """Models that serve its requests while none of its engines is up, in this order."""


class TenantConfig(LatencyLimitsConfig):
    """Limits and permissions of one tenant. A request's tenant comes from its API key."""

    name: Annotated[str, AfterValidator(_plain_name)]
    """Its name in metrics and logs."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Requests admitted per minute; without it there is no limit."""
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Tokens per minute, prompts and answers; an answer counts as predicted until it ends."""
    concurrency: Annotated[int, Field(ge=1)] | None = None
    """Requests at once, waiting and running."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its share of the engines against other tenants while all have requests waiting."""
    request_class: str | None = None
    """Class of its requests, one of `classes`: its priority and latency limits, where the tenant has none itself."""
    priority: Priority = 0
    """Priority of its requests; lower runs first, before any other order."""
    may_set_priority: bool = False
    """Whether `priority` in a request's body, or a class (header `x-lengthwise-request-class`, or
    `vllm_xargs.request_class`), replaces the tenant's."""
    may_declare_length: bool = False
    """Whether lengths in a request's body (`nvext.agent_hints.osl`, `vllm_xargs.expected_tokens`, `length_*`) count,
    once four of the tenant's answers held to them."""
    may_set_limits: bool = False
    """Whether latency limits in a request (headers `x-lengthwise-slo-s`, `-ttft-s`, `-per-token-s`; `vllm_xargs.slo_s`,
    `ttft_s`, `per_token_s`) replace the tenant's."""
    admin: bool = False
    """Whether its keys may use the admin API."""


def _from_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


def _distinct(engines: tuple[EngineConfig, ...]) -> tuple[EngineConfig, ...]:
    urls = [without_credentials(engine.url) for engine in engines]
    if len(set(urls)) < len(urls):
        raise InputError("an engine is given twice", hint="name each engine once")
    names = [engine.name or f"engine-{number}" for number, engine in enumerate(engines)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"two engines have the name '{min(twice)}'", hint="give each engine its own")
    return engines


class GatewayConfig(_Section):
    """The settings of a gateway and its engines. Times in seconds. `lengthwise serve` has an option for each."""

    engines: Annotated[
        tuple[Annotated[EngineConfig, BeforeValidator(_from_url)], ...], Field(min_length=1), AfterValidator(_distinct)
    ]
    """The engines: URLs, or sections with a `url`."""
    models: Annotated[dict[str, ModelConfig], BeforeValidator(_empty_is_default)] = Field(default={})
    """Aliases, fallbacks and latency targets, by the name of a model."""
    classes: Annotated[dict[str, ClassConfig], BeforeValidator(_empty_is_default)] = Field(default={})
    """Classes of requests by name, each with a priority and latency limits."""
    tenants: Annotated[dict[str, TenantConfig], BeforeValidator(_named)] = Field(default={})
    """Limits and permissions by tenant; `default` is for requests without a key."""

    policy: Annotated[str, AfterValidator(_known_policy)] = DEFAULT_POLICY
    """Order of waiting requests (docs/reference/policies.md)."""
    router: Annotated[str | None, AfterValidator(_known_router)] = None
    """Choice among engines (docs/reference/routing.md); lengthwise where there are several."""
    predictor: Annotated[str, AfterValidator(known_predictor)] = DEFAULT_PREDICTOR
    """Length predictor: fast, default, none, or a model file (.lw)."""
    learning: bool = True
    """Learn from the lengths of answers while serving (docs/reference/online.md). Off: predictions are those of the
    model file, and nothing else predicts."""
    state: Annotated[str, BeforeValidator(known_state)] = STATE_CACHE
    """Folder for what is learned, saved every minute and at the end and restored at the start: a path, `cache` (in the
    user's cache folder) or `off`."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes any free port."""

    tls_certificate: Path | None = None
    """File with the certificate chain (PEM): the gateway serves HTTPS. SIGHUP reads it again."""
    tls_key: Path | None = None
    """File with the certificate's private key, if it is not in the same file."""
    access_log: str | None = None
    """File for one JSON line per request, without prompts or keys; - is standard output."""
    otlp_endpoint: Annotated[str, AfterValidator(_collector_url)] | None = None
    """OpenTelemetry collector (OTLP over HTTP, http://HOST:4318) that gets a span of each request; extra `otel`."""
    log: Path | None = None
    """Folder for a traffic log, which `adapt --from` and `evaluate --from` read: lengths, predictions and keyed hashes
    of every request, no prompts or keys."""
    keep_prompts: bool = False
    """Whether the traffic log also has the text of prompts, from which `adapt --from` learns more."""
    watch: bool = False
    """Use a new version of the predictor's model file once it is written, without a restart. With `log` and a
    packaged predictor, that file is predictor.lw in its folder."""
    observe: bool = False
    """Only observe: every request passes at once and unchanged, first come, first served, and is logged with its
    prediction (needs `log`). `lengthwise report` then says what another order would have gained."""
    log_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    """Size of the traffic log; the oldest rows are deleted."""
    share_learning: bool = False
    """With `keys`: learn from all tenants together. Off: the answers of one change the predictions of no other."""
    keys: Path | None = None
    """File with API keys (`lengthwise keys add`); read again when it changes. With it a request needs a key."""
    shared_secret: Annotated[SecretStr, AfterValidator(_long_secret)] | None = None
    """Secret of all gateways in front of the same engines (32 characters or more), for the ids of stored responses:
    with `keys`, a tenant's response is then known to each of them, and to none of its neighbours. Without it only the
    gateway that passed a response on knows it, until it ends. Set it in the environment or the file, not as an option.
    """
    require_keys: bool = True
    """Whether a request without a key is refused with 401; else it belongs to the tenant `default`."""

    in_flight: Annotated[int, Field(ge=1)] = DEFAULT_SLOTS
    """Requests that run at once on one engine; the others wait here, in the policy's order. Start with the engine's
    `max_num_seqs`: fewer leave more to the policy, too few leave the engine idle."""
    admission_quantile: Annotated[float, Field(ge=0, lt=1)] = ADMISSION_QUANTILE
    """Send a request only where this quantile of the KV memory that all requests will take together fits; 0 turns it
    off. For engines that report their KV memory in /metrics, where lengths are predicted."""
    max_waiting: Annotated[int, Field(ge=0)] = 10_000
    """Requests that wait at once; one more is refused with 429."""
    max_body_bytes: Annotated[int, Field(ge=1)] = 50 << 20
    """Largest request body; a larger one is refused with 413."""
    max_held_bytes: Annotated[int, Field(ge=1)] = 1 << 30
    """Bytes of all bodies that are held at once, waiting and running, of what is kept of their prompts as text (at
    most 80 KB of each), and of large answers that are not read; a request beyond is refused with 503. A body that an
    engine's fields are added to is held twice while it runs."""
    max_header_bytes: Annotated[int, Field(ge=1)] = 64 << 10
    """Largest head of a request, and largest trailers; larger ones are refused with 431."""
    max_connections: Annotated[int | None, Field(ge=1)] = None
    """Open connections of clients, from their accept on; one more is refused with 503, with TLS closed. At most, and
    without it, half the limit of open files, which is raised at the start as far as the system allows, up to 65,536."""
    max_connections_per_address: Annotated[int | None, Field(ge=1)] = None
    """Those of one address (of IPv6, of one /64); one more is refused with 429, with TLS closed. Without it there is no
    limit, as behind a proxy, whose connections have one address."""
    extra_paths: Annotated[list[str], BeforeValidator(_listed), AfterValidator(_known_paths)] = Field(default=[])
    """Paths that are forwarded to engines beside those of the OpenAI API that are known (docs/guides/gateway.md):
    `/v1/images/generations`, or `/v1/images/*` for all below. Their tenants and tokens count as for the others."""
    stream_usage: bool = True
    """Ask engines for the length of streamed answers (`stream_options`); removed for clients that did not ask. Off for
    engines that refuse the field."""

    header_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    """Seconds until the head of a request has arrived; with TLS, until its handshake is complete."""
    body_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds until the body of a request, or 64 KiB more of it, has arrived."""
    write_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds in which a client has to read something of an answer that it has not read; else its connection is closed
    and its request aborted. 5 s while an engine waits for it."""
    silence_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds an engine may send nothing before its request fails with 504."""
    first_byte_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds until the first byte of a streamed answer before its request fails with 504. An answer in one piece
    arrives with its last token: the time to generate it, as predicted at the engine's recent speed, is added."""
    queue_timeout_s: Annotated[float | None, Field(gt=0)] = None
    """Seconds that a request waits for an engine before it fails with 503; without it there is no limit."""
    request_timeout_s: Annotated[float | None, Field(gt=0)] = None
    """Seconds from a request's arrival to the end of its answer before it fails with 504, a stream with an error
    event; without it there is no limit."""
    enforce_deadlines: bool = False
    """Fail a request with 504 if its latency target (`x-lengthwise-slo-s`) passes while it waits."""
    retries: Annotated[int, Field(ge=0)] = 2
    """Times that a request is sent again after 429 or 503, before the first byte of an answer; to another engine if one
    is up. After 500, 502 or a lost connection once (`resend`)."""
    resend: bool = True
    """Send a request once more whose body an engine may have executed: after 500, 502 or a lost connection, or if it
    hangs. Never one with `store` or `background`. Off: each is executed at most once."""
    retry_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Retries of what one engine fails or refuses: this share of its requests, plus 3 per second, and its slots at
    first."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """Failed answers in a row (5xx, broken off, timed out) after which an engine gets no request for a while."""
    breaker_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds until such an engine is tried again; twice as long after each failed trial, at most 32 times."""
    hold_timeout_s: Annotated[float, Field(ge=0)] = 30.0
    """Seconds a request waits while no engine is up before it fails with 503."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds to connect to an engine."""
    health_interval_s: Annotated[float, Field(gt=0)] = 1.0
    """Seconds between two health checks of an engine."""
    health_failures: Annotated[int, Field(ge=1)] = 3
    """Failed health checks in a row after which an engine is down."""
    health_successes: Annotated[int, Field(ge=1)] = 2
    """Good health checks in a row after which an engine is up again."""
    drain_s: Annotated[float, Field(ge=0)] = 1.0
    """Seconds after SIGTERM in which /ready is 503 while requests are still accepted, so that load balancers send no
    more of them; longer than their interval of checks."""
    shutdown_timeout_s: Annotated[int, Field(ge=0)] = 30
    """Seconds a stopping gateway lets running requests finish."""
    admin_token: Annotated[SecretStr, AfterValidator(_long_secret)] | None = None
    """Without `keys`: what changes by the admin API need (`Authorization: Bearer TOKEN`), on this machine too; 32
    characters or more. If none is given, `serve` makes one for its run and prints it with the dashboard's URL. Set it
    in the environment or the file, not as an option."""
    remote_control: bool = False
    """Accept the admin API from other machines; changes need the admin token. With `keys` an admin key is needed
    instead, on this machine too."""
    engine_hosts: Annotated[list[str], BeforeValidator(_listed), AfterValidator(_known_hosts)] = Field(default=[])
    """Where engines that join by the admin API may be, beside the hosts of `engines`: host names, `*.gpu.internal`, or
    networks (10.0.0.0/8), which addresses must be in."""
    internet: bool = False
    """Serve strangers: refuse to start, to reload and to read keys while a setting is missing that this needs
    (docs/guides/security.md#on-the-internet); the error names each."""
    tls_in_front: bool = False
    """TLS ends at a proxy in front of the gateway, over a path that others cannot read: for `internet`."""
    audit_log: str | None = None
    """File for one JSON line per change by the admin API or a reload: who, what, when and from where; no prompts or
    keys."""

    @property
    def chosen_router(self) -> str | None:
        """The router in use; None with one engine."""
        return None if len(self.engines) == 1 else self.router or DEFAULT_ROUTER

    def may_join(self, engine: EngineConfig) -> bool:
        """Whether an engine may join by the admin API: it is on the host of a configured one, or in `engine_hosts`.

        A name is not looked up: where it points may have changed when the gateway connects.
        """
        host = _host_of(engine.url)
        own = {_host_of(each.url) for each in self.engines}
        return not engine.simulated and (host in own or any(_is_in(host, each) for each in self.engine_hosts))

    @property
    def tenants_apart(self) -> bool:
        """Whether each tenant's answers change its own predictions only."""
        return self.keys is not None and not self.share_learning

    @property
    def default_tenant(self) -> TenantConfig:
        """The tenant of requests without a key. Without a keys file its clients may do what its section leaves open."""
        given = self.tenants.get(DEFAULT_TENANT) or TenantConfig(name=DEFAULT_TENANT)
        if self.keys is not None:
            return given
        permissions = {"may_set_priority", "may_declare_length", "may_set_limits"} - given.model_fields_set
        return given.model_copy(update=dict.fromkeys(permissions, True))

    def class_of(self, tenant: TenantConfig) -> ClassConfig:
        """Return the class of a tenant's requests; InputError if it is none of `classes`."""
        if tenant.request_class is None:
            return _NO_CLASS
        if tenant.request_class not in self.classes:
            known = ", ".join(self.classes)
            raise InputError(
                f"tenant {tenant.name} has the class '{tenant.request_class}'",
                field="request_class",
                hint=f"known are {known}" if known else "name it under `classes` in the configuration file",
            )
        return self.classes[tenant.request_class]

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        for tenant in self.tenants.values():
            self.class_of(tenant)
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.tls_key is not None and self.tls_certificate is None:
            raise InputError("tls_key is given without tls_certificate", hint="give both")
        return self

    @model_validator(mode="after")
    def _check_log(self) -> Self:
        if self.keep_prompts and self.log is None:
            raise InputError("keep_prompts is given without log", hint="name a folder with --log DIR")
        if self.watch and self.watched is None:
            raise InputError("there is no file to watch", hint="name a model file with --predictor, or --log DIR")
        return self

    @model_validator(mode="before")
    @classmethod
    def _refuse_retired(cls, given: Any) -> Any:  # not validated yet
        for old, instead in RETIRED.items():
            if isinstance(given, Mapping) and old in given:
                raise InputError(instead, field=old)
        return given

    @model_validator(mode="before")
    @classmethod
    def _observing(cls, given: Any) -> Any:  # not validated yet
        """Set what `observe` stands for; InputError where something else is given."""
        if not isinstance(given, Mapping) or given.get("observe") not in (True, "true"):
            return given
        if given.get("log") is None:
            raise InputError("observe is given without log", hint="name a folder for the log with --log DIR")
        for name, value in _OBSERVING.items():
            if given.get(name, value) != value:
                raise InputError(f"{name} is {given[name]} and observe is on", hint="leave one of the two out")
        return {**given, **_OBSERVING}

    @property
    def watched(self) -> Path | None:
        """The model file that is watched, if there is one; it need not exist."""
        if Path(self.predictor).suffix == SUFFIX:
            return Path(self.predictor)
        return None if self.log is None else self.log / PREDICTOR_NAME

    @model_validator(mode="after")
    def _check_observed_engines(self) -> Self:
        if self.observe and any(engine.in_flight is not None for engine in self.engines):
            raise InputError("an engine has in_flight and observe is on", hint="leave one of the two out")
        return self

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        names = [*self.models, *(alias for model in self.models.values() for alias in model.aliases)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InputError(f"two models have the name or alias '{min(twice)}'", hint="use each name once")
        return self


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def _is_in(host: str, allowed: str) -> bool:
    """Whether a host is a name or, an address, in a network; `*.NAME` is every name below NAME."""
    try:
        address = ip_address(host)
    except ValueError:
        name = allowed.lower()
        return host == name or (name.startswith("*.") and host.endswith(name[1:]))
    try:
        return address in ip_network(allowed)
    except ValueError:
        return False


def read_config(path: Path, *, overrides: Mapping[str, Any], defaults: Mapping[str, Any]) -> GatewayConfig:
    """Return the configuration in a YAML file, with `overrides` in place of its fields, `defaults` for absent ones.

    `${NAME}` in a text is replaced by that environment variable. An InputError names the file and the field.
    """
    content = read_yaml(path, hint="begin with engines:")
    given = {name: _with_environment(value, path, name) for name, value in content.items()}
    return validated(GatewayConfig, {**defaults, **given, **overrides}, source=path)


def _with_environment(value: Any, path: Path, field: str) -> Any:  # any YAML value
    if isinstance(value, str):
        for name in _VARIABLE.findall(value):
            if name not in os.environ:
                raise InputError(f"the environment variable {name} is not set", source=path, field=field, hint="set it")
        return _VARIABLE.sub(lambda found: os.environ[found[1]], value)
    if isinstance(value, Mapping):
        return {name: _with_environment(each, path, f"{field}.{name}") for name, each in value.items()}
    if isinstance(value, Sequence):
        return [_with_environment(each, path, f"{field}.{number}") for number, each in enumerate(value)]
    return value
