"""The audit log has every change by the admin API: who, what, when and from where; no prompt and no key."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig, create_app
from lengthwise.gateway.audit_log import AuditLog
from lengthwise.gateway.keys import add_key
from tests.gateway.helpers import ADMIN, TOKEN, body, gateway, post

pytestmark = pytest.mark.anyio

BASE = "/lengthwise/v1"
PROMPT = "the secret words of a prompt"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def change(
    http: aiohttp.ClientSession, url: str, method: str, path: str, headers: dict[str, str], /, **sent: str
) -> int:
    async with http.request(method, url + BASE + path, json=sent or None, headers=headers) as response:
        return response.status


async def test_every_change_has_a_line_and_reading_and_requests_have_none(
    http: aiohttp.ClientSession, engine_url: str, tmp_path: Path
) -> None:
    log, began = tmp_path / "audit.jsonl", time.time()
    with gateway(engine_url, audit_log=str(log)) as url:
        assert (await post(http, url, body(prompt=PROMPT)))[0] == 200
        assert await change(http, url, "PUT", "/policy", {}, policy="sjf") == 403
        async with http.get(url + BASE + "/queue") as response:
            assert response.status == 200
        assert await change(http, url, "PUT", "/policy", ADMIN, policy="sjf") == 200
        assert await change(http, url, "PUT", "/policy", ADMIN, policy="no such") == 400
        engine = {"url": "http://user:password@127.0.0.1:1", "name": "gpu-3", "api_key": "hunter2"}
        assert await change(http, url, "POST", "/engines", ADMIN, **engine) == 201
        assert await change(http, url, "DELETE", "/engines/gpu-3", ADMIN) == 202
    found = lines(log)
    assert [(each["action"], each["status"], each["what"]) for each in found] == [
        (f"PUT {BASE}/policy", 200, {"policy": "sjf", "before": "lengthwise"}),
        (f"PUT {BASE}/policy", 400, {"policy": "no such", "before": "sjf"}),
        (f"POST {BASE}/engines", 201, {"engine": "gpu-3", "url": "http://127.0.0.1:1"}),
        (f"DELETE {BASE}/engines/gpu-3", 202, {"engine": "gpu-3"}),
    ]
    assert {(each["who"], each["from"]) for each in found} == {("admin token", "127.0.0.1")}
    assert all(began - 1 <= each["time_s"] <= time.time() + 1 for each in found)
    assert not any(secret in log.read_text() for secret in (PROMPT, TOKEN, "password", "hunter2"))
    assert log.stat().st_mode & 0o777 == 0o600


async def test_with_keys_a_line_names_the_tenant(http: aiohttp.ClientSession, engine_url: str, tmp_path: Path) -> None:
    log, keys = tmp_path / "audit.jsonl", tmp_path / "keys.json"
    key = add_key(keys, "ops", {"admin": True})
    with gateway(engine_url, keys=keys, audit_log=str(log)) as url:
        assert await change(http, url, "PUT", "/policy", {"authorization": f"Bearer {key}"}, policy="fcfs") == 200
    assert [each["who"] for each in lines(log)] == ["ops"]
    assert key not in log.read_text()


async def test_a_reload_is_logged_with_the_settings_that_it_changes(engine_url: str, tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    config = GatewayConfig.model_validate({"engines": [engine_url], "predictor": "none", "audit_log": str(log)})
    app = create_app(config)
    async with app.router.lifespan_context(app):
        log.rename(tmp_path / "rotated.jsonl")
        await app.state.reloader.reload(lambda: config.model_copy(update={"max_waiting": 7}))
    assert [(each["who"], each["action"], each["what"]) for each in lines(log)] == [
        ("SIGHUP", "reload", {"settings": ["max_waiting"]})
    ]


def test_a_full_disk_leaves_the_line_in_the_log_of_the_process(caplog: pytest.LogCaptureFixture) -> None:
    with AuditLog("/dev/full").change({"method": "PUT", "path": "/x", "client": None}, "ops"):
        pass
    assert "the audit log cannot be written" in caplog.text
    assert '"who":"ops"' in caplog.text


def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the audit log cannot be written"):
        AuditLog(str(tmp_path / "none" / "audit.jsonl"))
