"""Access to the gateway: the tenant of a request by its API key, limits of tenants, and access to the admin API."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from hmac import compare_digest
from ipaddress import ip_address
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp, Receive, Scope, Send

from lengthwise.errors import InputError
from lengthwise.files import Version, file_version
from lengthwise.gateway.access_log import RECORD, AccessLog, noting
from lengthwise.gateway.audit_log import CHANGE, AuditLog
from lengthwise.gateway.config import DEFAULT_TENANT, GatewayConfig, TenantConfig
from lengthwise.gateway.errors import ApiError, error_format
from lengthwise.gateway.internet import check_internet
from lengthwise.gateway.keys import key_hash, read_keys
from lengthwise.gateway.types import PAGE_PATHS, PREFIX
from lengthwise.policies import Policy, make_policy
from lengthwise.policies.wrappers import Fair, Wrapper
from lengthwise.predictors.contract import answer_cap
from lengthwise.predictors.history import History

_log = logging.getLogger(__name__)

Header = tuple[bytes, bytes]
Refusal = Literal["requests", "tokens", "concurrency"]

_OPEN_PATHS: Final = frozenset({"/health", "/ready", "/metrics", *PAGE_PATHS})
_ADMIN_PREFIX: Final = "/lengthwise/"
_TENANT_PATHS: Final = frozenset({f"{PREFIX}/predict"})  # under that prefix, for every tenant
_OPEN_READING: Final = (f"{PREFIX}/policy", "GET")
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ASKING: Final = frozenset({f"{PREFIX}/what-if"})  # a question with a body
_ADMIN_TOKEN: Final = "admin token"  # noqa: S105  (who it is in the audit log)
_CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key"})
_PROXIED: Final = frozenset({b"forwarded", b"via", b"x-real-ip"})
"""Headers of requests that came through a proxy."""

_OTHER_SITES: Final = frozenset({b"cross-site", b"same-site"})
"""Values of Sec-Fetch-Site by which browsers mark requests of other sites, also without an Origin."""

_LEASE: Final = "lengthwise.lease"
_MINUTE_S: Final = 60.0
_CLAIMS_TO_PROVE: Final = 4.0
_CLAIMS_KEPT: Final = 32.0
_MIN_CLAIM: Final = 16  # tokens


class TokenBucket:
    """At most `per_minute` in the long run, and as much at once after a minute without use.

    left(t) = min(per_minute, left(s) + (t - s) * per_minute / 60)
    Over any time of T seconds at most per_minute * (1 + T / 60) is taken, and an amount larger than `per_minute`, which
    needs a full bucket and leaves it in debt.
    """

    __slots__ = ("_at", "_left", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._left = float(per_minute)
        self._at = now

    def left(self, now: float) -> float:
        """Return what may be taken now; negative in debt."""
        self._left = min(self.per_minute, self._left + max(0.0, now - self._at) * self.per_minute / _MINUTE_S)
        self._at = max(self._at, now)
        return self._left

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` may be taken; 0 if it may be now."""
        missing = min(amount, self.per_minute) - self.left(now)
        return max(0.0, missing * _MINUTE_S / self.per_minute)

    def take(self, amount: float, now: float) -> None:
        """Take an amount without a check; a negative one is given back."""
        self._left = min(self.per_minute, self.left(now) - amount)

    def resize(self, per_minute: int, now: float) -> None:
        """Change the limit; what was taken stays taken."""
        taken = self.per_minute - self.left(now)
        self.per_minute = per_minute
        self._left = per_minute - taken


class Claims:
    """What the lengths that a tenant declares are worth: they count once four held, while half of the recent ones do.

    share = held / (4 + finished)           finished ones fade: each counts 1 - 1/32 of the one after it
    A claim does not hold if the answer has more than twice the tokens, and more than 16. One that is too large harms
    only its own request. So a burst of false claims gains nothing, also where nothing is known of the tenant.
    """

    __slots__ = ("_finished", "_held")

    def __init__(self) -> None:
        self._held = 0.0
        self._finished = _CLAIMS_TO_PROVE

    @property
    def count(self) -> bool:
        """Whether what the tenant declares counts."""
        return 2 * self._held >= self._finished

    def observe(self, claimed: float, tokens: int, *, censored: bool) -> None:
        """Compare a claim with the tokens of an answer; with `censored` it broke off, and would have had more."""
        wrong = tokens > max(_MIN_CLAIM, 2 * claimed)
        if wrong or not censored:
            self._held += (not wrong) - self._held / _CLAIMS_KEPT
            self._finished += 1 - self._finished / _CLAIMS_KEPT


class Account:
    """The use that a tenant makes of its limits."""

    def __init__(self, tenant: TenantConfig, now: float) -> None:
        self.tenant = tenant
        self.open_requests = 0
        """Its requests, waiting and running."""
        self.admitted = 0
        self.tokens = 0
        """Tokens of its answers and their prompts."""
        self.refused: dict[Refusal, int] = {"requests": 0, "tokens": 0, "concurrency": 0}
        self.answers = History()
        """The lengths of its own answers, where its tokens are limited."""
        self.claims = Claims()
        self.requests_left = _bucket(None, tenant.requests_per_minute, now)
        self.tokens_left = _bucket(None, tenant.tokens_per_minute, now)

    def use(self, tenant: TenantConfig, now: float) -> None:
        """Change the limits under the requests that run."""
        self.tenant = tenant
        self.requests_left = _bucket(self.requests_left, tenant.requests_per_minute, now)
        self.tokens_left = _bucket(self.tokens_left, tenant.tokens_per_minute, now)


def _bucket(known: TokenBucket | None, per_minute: int | None, now: float) -> TokenBucket | None:
    if known is None or per_minute is None:
        return None if per_minute is None else TokenBucket(per_minute, now)
    known.resize(per_minute, now)
    return known


class Lease:
    """One request of a tenant: it takes from the tenant's limits and gives back what it did not use."""

    __slots__ = ("_account", "_charged", "_clock")

    def __init__(self, account: Account, clock: Callable[[], float]) -> None:
        """Admit a request; ApiError 429 if the tenant's requests are used up."""
        self._account = account
        self._clock = clock
        self._charged = 0
        tenant, bucket, now = account.tenant, account.requests_left, clock()
        if tenant.concurrency is not None and account.open_requests >= tenant.concurrency:
            raise self._refuse("concurrency", f"{tenant.concurrency} requests at once", 1.0)
        if bucket is not None:
            if wait_s := bucket.wait_s(1, now):
                raise self._refuse("requests", f"{bucket.per_minute} requests per minute", wait_s)
            bucket.take(1, now)
        account.open_requests += 1
        account.admitted += 1

    @property
    def tenant(self) -> TenantConfig:
        """The tenant, with its permissions."""
        return self._account.tenant

    @property
    def limits_tokens(self) -> bool:
        """Whether the tenant's tokens are limited."""
        return self._account.tokens_left is not None

    def expected_answer(self, llm: str, max_tokens: int | None) -> float:
        """Return the expected tokens of an answer by the tenant's own answers; those of others do not count."""
        return self._account.answers.prediction(llm, answer_cap(max_tokens)).mean()

    def observe_answer(self, llm: str, tokens: int, *, censored: bool) -> None:
        """Record the length of an answer, for the charges of later requests."""
        if self.limits_tokens:
            self._account.answers.observe(llm, tokens, censored=censored)

    @property
    def claims(self) -> Claims:
        """What the lengths that the tenant declares are worth."""
        return self._account.claims

    def charge(self, tokens: int) -> None:
        """Charge the predicted tokens of prompt and answer; ApiError 429 if the tenant's tokens are used up."""
        bucket, now = self._account.tokens_left, self._clock()
        if bucket is not None:
            if wait_s := bucket.wait_s(tokens, now):
                raise self._refuse("tokens", f"{bucket.per_minute} tokens per minute", wait_s)
            bucket.take(tokens, now)
            self._charged = tokens

    def correct(self, tokens: int) -> None:
        """Charge a new prediction in place of the first one; nothing is refused."""
        if self._account.tokens_left is not None:
            self._account.tokens_left.take(tokens - self._charged, self._clock())
            self._charged = tokens

    def settle(self, tokens: int | None) -> None:
        """Charge the true tokens in place of the predicted ones; with None, unknown, the prediction stands."""
        self._account.tokens += self._charged if tokens is None else tokens
        if tokens is not None and self._account.tokens_left is not None:
            self._account.tokens_left.take(tokens - self._charged, self._clock())

    def keep(self) -> None:
        """Let the request last beyond its answer: it ends at a second `release`."""
        self._account.open_requests += 1

    def release(self) -> None:
        """End the request."""
        self._account.open_requests -= 1

    @property
    def headers(self) -> list[Header]:
        """`x-ratelimit-*` as OpenAI has them, for the limits that the tenant has."""
        account = self._account
        if account.requests_left is None and account.tokens_left is None:
            return []
        now = self._clock()
        buckets = (("requests", account.requests_left), ("tokens", account.tokens_left))
        return [header for name, bucket in buckets if bucket is not None for header in _headers(name, bucket, now)]

    def _refuse(self, kind: Refusal, limit: str, wait_s: float) -> ApiError:
        self._account.refused[kind] += 1
        headers = {name.decode(): value.decode() for name, value in self.headers}
        return ApiError(
            429,
            f"Rate limit reached for {self.tenant.name}: {limit}. Please try again in {_duration(wait_s)}.",
            code="rate_limit_exceeded",
            headers={**headers, "retry-after": str(max(1, math.ceil(wait_s)))},
        )


def _headers(name: str, bucket: TokenBucket, now: float) -> Iterable[Header]:
    left = bucket.left(now)
    values = {
        "limit": str(bucket.per_minute),
        "remaining": str(max(0, math.floor(left))),
        "reset": _duration((bucket.per_minute - left) * _MINUTE_S / bucket.per_minute),
    }
    return [(f"x-ratelimit-{what}-{name}".encode(), value.encode()) for what, value in values.items()]


def _duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: 120ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


class Tenants:
    """The tenants of a gateway: the tenant of each key, and the account of each tenant."""

    def __init__(self, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._by_hash: dict[bytes, Account] = {}
        self._weights: dict[str, float] = {}
        self._version: Version | None = None
        self.unauthorized = 0
        """Requests with a missing or unknown key."""
        self.use(config)

    def use(self, config: GatewayConfig) -> None:
        """Use a configuration and read its keys file; InputError if that is invalid, and nothing changes."""
        version = None if config.keys is None else file_version(config.keys)
        stored = () if config.keys is None else read_keys(config.keys).tenants
        now = self._clock()
        tenants = {tenant.name: config.tenants.get(tenant.name, tenant) for tenant in stored}
        tenants[DEFAULT_TENANT] = config.default_tenant
        for tenant in tenants.values():
            config.class_of(tenant)
        check_internet(config, tenants.values())
        self._config, self._version = config, version
        self._accounts = {name: self._account(tenant, now) for name, tenant in tenants.items()}
        self._default = self._accounts[DEFAULT_TENANT]
        self._weights.clear()  # the policy in force reads this dictionary
        self._weights.update((name, tenant.weight) for name, tenant in tenants.items())
        self._by_hash = {
            bytes.fromhex(key.sha256): self._accounts[tenant.name] for tenant in stored for key in tenant.keys
        }

    def _account(self, tenant: TenantConfig, now: float) -> Account:
        known = self._accounts.get(tenant.name)
        if known is None:
            return Account(tenant, now)
        known.use(tenant, now)
        return known

    @property
    def uses_keys(self) -> bool:
        """Whether requests have keys."""
        return self._config.keys is not None

    def policy(self, spec: str) -> Policy:
        """Return the policy in force for a configured one: with keys, tenants have fair shares by default."""
        policy = make_policy(spec)
        if not self.uses_keys:
            return policy
        return _with_weights(policy, self._weights) or Fair(policy, weights=self._weights)

    def admit(self, scope: Scope) -> Lease:
        """Admit a request; ApiError 401 without a valid key, 429 beyond a limit."""
        return Lease(self._find(scope) if self.uses_keys else self._default, self._clock)

    def admit_admin(self, scope: Scope) -> str:
        """Return who uses the admin API; ApiError 403 (401 for an unknown key) unless a request may.

        With keys it needs that of an admin tenant, on this machine too. Without keys this machine may read, others with
        `remote_control`, and a change needs the admin token besides. All may then read the policy; the queue and the
        engines concern other clients.
        """
        if self.uses_keys:
            tenant = self._find(scope).tenant
            if not tenant.admin:
                raise ApiError(403, "this key may not use the admin API", code="not_admin")
            return tenant.name
        is_open = self._config.remote_control or (scope["path"], scope["method"]) == _OPEN_READING
        if not is_open and not _is_local(scope):
            raise ApiError(403, "this path is for this machine only", code="not_local")
        if changes(scope) and not self._has_token(scope):
            message = "send the admin token, which `lengthwise serve` prints at its start: Authorization: Bearer TOKEN"
            raise ApiError(403, message, code="no_admin_token")
        return _ADMIN_TOKEN

    def _has_token(self, scope: Scope) -> bool:
        given, token = _presented_key(scope["headers"]), self._config.admin_token
        return token is not None and given is not None and compare_digest(given, token.get_secret_value().encode())

    def _find(self, scope: Scope) -> Account:
        key = _presented_key(scope["headers"])
        if key is None:
            if not self._config.require_keys:
                return self._default
            self.unauthorized += 1
            message = "You didn't provide an API key. Send it in a header: Authorization: Bearer YOUR_KEY"
            raise ApiError(401, message, headers={"www-authenticate": "Bearer"})
        # The time of this lookup depends on the hash, which an attacker cannot choose, not on how much of it is right.
        account = self._by_hash.get(key_hash(key))
        if account is None:
            self.unauthorized += 1
            headers = {"www-authenticate": "Bearer"}
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=headers)
        return account

    async def watch(self, interval_s: float) -> None:
        """Read the keys file again whenever it changes; an invalid one is logged, and the keys stay."""
        while True:
            await asyncio.sleep(interval_s)
            version = None if self._config.keys is None else file_version(self._config.keys)
            if version != self._version:
                try:
                    self.use(self._config)
                    _log.warning("%s is read again: %d keys", self._config.keys, len(self._by_hash))
                except InputError as error:
                    self._version = version
                    _log.error("the keys stay as they were: %s", error)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics by tenant."""
        admitted = CounterMetricFamily("lengthwise_tenant_requests", "Requests admitted.", labels=["tenant"])
        tokens = CounterMetricFamily("lengthwise_tenant_tokens", "Tokens of prompts and answers.", labels=["tenant"])
        text = "Open requests of a tenant, waiting and running, which its `concurrency` limits."
        opened = GaugeMetricFamily("lengthwise_tenant_open_requests", text, labels=["tenant"])
        refused = CounterMetricFamily("lengthwise_tenant_refused", "Requests refused.", labels=["tenant", "limit"])
        for name, account in self._accounts.items():
            admitted.add_metric([name], account.admitted)
            tokens.add_metric([name], account.tokens)
            opened.add_metric([name], account.open_requests)
            for limit, count in account.refused.items():
                refused.add_metric([name, limit], count)
        yield from (admitted, tokens, opened, refused)
        text = "Requests with a missing or unknown key."
        yield CounterMetricFamily("lengthwise_unauthorized", text, self.unauthorized)


class TenantGate:
    """ASGI middleware that admits requests: their tenant, its limits, the admin API.

    Where keys are in use, the client's credentials do not pass: they are for the gateway, not for engines.
    """

    def __init__(
        self, app: ASGIApp, tenants: Tenants, log: AccessLog | None = None, audit: AuditLog | None = None
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._log = log
        self._audit = audit

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Serve a request, or refuse it with 401, 403 or 429."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            return self._pass(scope, receive, send)
        if self._log is None:
            return self._admit(scope, receive, send)
        return self._record(self._log, scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _record(self, log: AccessLog, scope: Scope, receive: Receive, send: Send) -> None:
        with log.record(scope) as record:
            await self._admit({**scope, RECORD: record}, receive, noting(send, record))

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        lease = who = None
        try:
            if path.startswith(_ADMIN_PREFIX) and path not in _TENANT_PATHS:
                who = self._tenants.admit_admin(scope)
            else:
                lease = self._tenants.admit(scope)
        except ApiError as error:
            await error.response(error_format(path))(scope, receive, send)
            return
        if self._tenants.uses_keys:
            scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] not in _CREDENTIALS]}
        scope[_LEASE] = lease
        if lease is not None and RECORD in scope:
            scope[RECORD]["tenant"] = lease.tenant.name
        try:
            if who is not None and self._audit is not None and changes(scope):
                with self._audit.change(scope, who) as record:
                    await self._app({**scope, CHANGE: record}, receive, noting(send, record))
            else:
                await self._app(scope, receive, send)
        finally:
            if lease is not None:
                lease.release()


def changes(scope: Scope) -> bool:
    """Whether a request to the admin API changes something."""
    return scope["method"] not in _READING and scope["path"] not in _ASKING


def lease_of(scope: Scope) -> Lease:
    """Return the lease of a request that passed the gate."""
    lease: Lease = scope[_LEASE]
    return lease


def _presented_key(headers: Iterable[Header]) -> bytes | None:
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
        if name == b"x-api-key":
            return value.strip()
    return None


def _with_weights(policy: Policy, weights: Mapping[str, float]) -> Policy | None:
    """Return a policy that has fair shares inside, with weights; None if it has not."""
    if isinstance(policy, Fair):
        return replace(policy, weights=weights)
    inner = _with_weights(policy.inner, weights) if isinstance(policy, Wrapper) else None
    return replace(policy, inner=inner) if isinstance(policy, Wrapper) and inner is not None else None


def _is_local(scope: Scope) -> bool:
    """Whether the peer is this machine, and not a proxy or a web page on it; the gateway's own page may ask.

    The host asked for must be this machine too: a foreign name may point here (DNS rebinding).
    """
    headers = dict(scope["headers"])
    own = b"%s://%s" % (scope["scheme"].encode(), headers.get(b"host", b""))
    if headers.get(b"origin", own) != own or headers.get(b"sec-fetch-site") in _OTHER_SITES:
        return False
    if any(name in _PROXIED or name.startswith(b"x-forwarded") for name in headers):
        return False
    client = scope.get("client")
    return client is not None and _is_loopback(client[0]) and _is_loopback(_host_of(headers.get(b"host", b"")))


def _host_of(header: bytes) -> str:
    try:
        return urlsplit(f"//{header.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
