"""A gateway for strangers does not start, reload or read keys while a setting that this needs is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig
from lengthwise.gateway.keys import add_key
from lengthwise.gateway.tenants import Tenants

LIMITS = {"requests_per_minute": 60, "tokens_per_minute": 10_000, "concurrency": 4}
COMPLETE: dict[str, Any] = {
    "tls_in_front": True,
    "shared_secret": "s" * 32,
    "access_log": "-",
    "queue_timeout_s": 60,
    "request_timeout_s": 600,
}
SETTINGS = sorted({*COMPLETE, "audit_log", "require_keys", "stream_usage", "share_learning", "remote_control"})
NAMED = {"tls_in_front": "tls_certificate"}
"""The setting that is named where another one is missing."""


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, Any]:
    """All settings, with an administrator and one tenant that has limits."""
    keys = tmp_path / "keys.json"
    add_key(keys, "ops", {"admin": True})
    add_key(keys, "chat", LIMITS)
    audit = str(tmp_path / "audit.jsonl")
    return {"engines": ["http://gpu-1:8000"], "internet": True, "keys": keys, "audit_log": audit, **COMPLETE}


def missing(given_settings: dict[str, Any]) -> set[str]:
    """Return the settings that are named as missing."""
    try:
        Tenants(GatewayConfig.model_validate(given_settings))
    except InputError as error:
        return set(re.findall(r"^  ([\w.]+): ", str(error), re.MULTILINE))
    return set()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.sampled_from(SETTINGS)))
def test_every_missing_setting_is_named_and_no_other(complete: dict[str, Any], without: set[str]) -> None:
    changed = {
        **complete,
        **{name: not GatewayConfig.model_fields[name].default for name in without if name not in complete},
    }
    kept = {name: value for name, value in changed.items() if name not in without or name not in complete}
    assert missing(kept) == {NAMED.get(name, name) for name in without}


def test_without_keys_that_is_named(complete: dict[str, Any]) -> None:
    assert missing({name: value for name, value in complete.items() if name != "keys"}) == {"keys"}


def test_keys_that_others_may_read_are_named(complete: dict[str, Any]) -> None:
    complete["keys"].chmod(0o644)
    assert missing(complete) == {"keys"}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_a_tenant_lacks_is_named_with_it(complete: dict[str, Any], tmp_path: Path, limit: str) -> None:
    keys = tmp_path / "more.json"
    add_key(keys, "ops", {"admin": True})
    add_key(keys, "chat", {name: value for name, value in LIMITS.items() if name != limit})
    assert missing({**complete, "keys": keys}) == {f"tenants.chat.{limit}"}


def test_an_administrator_is_needed(complete: dict[str, Any], tmp_path: Path) -> None:
    keys = tmp_path / "more.json"
    add_key(keys, "chat", LIMITS)
    assert missing({**complete, "keys": keys}) == {"admin"}


def test_a_tenant_that_is_added_without_limits_does_not_come_into_force(complete: dict[str, Any]) -> None:
    config = GatewayConfig.model_validate(complete)
    tenants = Tenants(config)
    key = add_key(complete["keys"], "late", {})
    with pytest.raises(InputError, match=r"tenants\.late\.concurrency"):
        tenants.use(config)
    assert tenants.policy("fcfs").name == "fair(fcfs)"
    assert key


def test_without_internet_nothing_is_checked() -> None:
    assert missing({"engines": ["http://gpu-1:8000"]}) == set()


@pytest.mark.parametrize("check", [["--check"], []], ids=["check", "start"])
def test_the_command_exits_with_2_and_names_each_setting(check: list[str]) -> None:
    result = CliRunner().invoke(app, ["serve", "--engine", "http://127.0.0.1:1", "--port", "0", "--internet", *check])
    assert result.exit_code == 2
    for name in ("keys", "tls_certificate", "shared_secret", "access_log", "audit_log", "queue_timeout_s"):
        assert f"\n  {name}: " in result.stderr


def test_the_command_passes_a_complete_configuration(complete: dict[str, Any]) -> None:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in complete.items() if name in SETTINGS]
    options = [option.removesuffix("=True") for option in options] + ["--keys", str(complete["keys"]), "--internet"]
    result = CliRunner().invoke(app, ["serve", "--engine", "http://gpu-1:8000", "--check", *options])
    assert (result.exit_code, result.stderr) == (0, "")


def test_where_the_gateway_ends_tls_the_connections_of_one_address_are_limited(complete: dict[str, Any]) -> None:
    at_port = {**complete, "tls_in_front": False, "tls_certificate": "chain.pem"}
    assert missing(at_port) == {"max_connections_per_address"}
    assert missing({**at_port, "max_connections_per_address": 100}) == set()
