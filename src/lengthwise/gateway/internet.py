"""What a gateway needs before strangers may reach it, and which of it a configuration lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from lengthwise.errors import InputError
from lengthwise.gateway.config import DEFAULT_TENANT, GatewayConfig, TenantConfig

_PAGE: Final = "docs/guides/security.md#on-the-internet"
_LIMITS: Final = {
    "requests_per_minute": "how many requests it sends",
    "tokens_per_minute": "how many tokens it uses",
    "concurrency": "how many slots and queue places it holds",
}
_GIVEN: Final = {
    "shared_secret": "stored responses are lost at a restart, and unknown to other replicas",
    "access_log": "no record of who sent requests",
    "audit_log": "no record of who changed what",
    "queue_timeout_s": "requests may wait forever",
    "request_timeout_s": "an answer may hold its slot forever",
}
"""Settings that must be given, and what is the case without them."""
_AS_DEFAULT: Final = {
    "require_keys": "requests without a key are admitted",
    "stream_usage": "the tokens of streams are not reported, so that limits of tokens do not hold",
    "share_learning": "answers of one tenant change the predictions of others",
    "remote_control": "opens the admin API to other machines where keys are off",
}
"""Settings that must be at their defaults, and what is the case otherwise."""
_OTHERS: Final = 0o077  # bits of a file's mode


def check_internet(config: GatewayConfig, tenants: Iterable[TenantConfig]) -> None:
    """Raise an InputError that names each setting that `internet` needs and the configuration lacks, one on a line."""
    if config.internet and (missing := dict(_missing(config, list(tenants)))):
        lines = "".join(f"\n  {setting}: {why}" for setting, why in missing.items())
        raise InputError(f"not ready for the internet ({_PAGE}):{lines}", source="internet")


def _missing(config: GatewayConfig, tenants: list[TenantConfig]) -> Iterator[tuple[str, str]]:
    """Yield the name of each setting that is missing, and why it is needed."""
    known = [tenant for tenant in tenants if tenant.name != DEFAULT_TENANT]
    if config.keys is None:
        yield "keys", "without keys anybody may send requests; `lengthwise keys add` makes them"
    else:
        if config.keys.stat().st_mode & _OTHERS:
            yield "keys", f"other users of this machine may read {config.keys}; chmod 600"
        if not any(tenant.admin for tenant in known):
            yield "admin", "no tenant may use the admin API; `lengthwise keys add NAME --admin`"
    if not config.tls_in_front:
        yield from _missing_at_port(config)
    for name, why in _GIVEN.items():
        if getattr(config, name) is None:
            yield name, why
    for name, why in _AS_DEFAULT.items():
        if getattr(config, name) != GatewayConfig.model_fields[name].default:
            yield name, why
    for tenant in known:
        for limit, of in _LIMITS.items():
            if getattr(tenant, limit) is None and not tenant.admin:
                yield f"tenants.{tenant.name}.{limit}", f"nothing limits {of}"


def _missing_at_port(config: GatewayConfig) -> Iterator[tuple[str, str]]:
    if config.tls_certificate is None:
        yield "tls_certificate", "keys and prompts are sent in clear; set tls_in_front if a proxy ends TLS"
    elif config.max_connections_per_address is None:
        yield "max_connections_per_address", "one client may hold all connections"
