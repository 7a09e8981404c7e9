from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from lengthwise.cli.model_options import validated
from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig
from tests.gateway.engine import StandIn
from tests.gateway.helpers import body, gateway, metric, post

ENGINE = "http://127.0.0.1:8000"


def config(**fields: Any) -> GatewayConfig:
    return validated(GatewayConfig, **{"engines": [ENGINE], **fields})


def test_a_plain_url_is_an_engine_with_defaults() -> None:
    (engine,) = config().engines
    assert (engine.url, engine.name, engine.kind, engine.in_flight, engine.api_key) == (
        ENGINE,
        None,
        "auto",
        None,
        None,
    )


def test_sections_and_urls_may_be_mixed() -> None:
    engines = config(engines=[{"url": ENGINE + "/v1", "name": "gpu-1"}, "simulated:4*llama-3-8b@a100"]).engines
    assert [(engine.url, engine.simulated) for engine in engines] == [
        (ENGINE, False),
        ("simulated:4*llama-3-8b@a100", True),
    ]


def test_an_api_key_is_not_shown() -> None:
    assert "secret" not in repr(config(engines=[{"url": ENGINE, "api_key": "secret"}]))


def test_tenants_and_models_are_sections_by_name() -> None:
    read = config(tenants={"team-a": {"requests_per_minute": 600}, "team-b": None}, models={"m": None})
    assert [(tenant.name, tenant.requests_per_minute) for tenant in read.tenants.values()] == [
        ("team-a", 600),
        ("team-b", None),
    ]
    assert read.models["m"].aliases == ()


def test_clients_of_the_default_tenant_may_set_what_it_does_not() -> None:
    assert config().default_tenant.may_set_priority
    strict = config(tenants={"default": {"may_set_priority": False}}).default_tenant
    assert (strict.may_set_priority, strict.may_declare_length) == (False, True)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"engines": [ENGINE, {"url": ENGINE + "/v1"}]}, "an engine is given twice"),
        ({"engines": [{"url": ENGINE, "name": "engine-1"}, "http://127.0.0.1:8001"]}, "two engines have the name"),
        ({"engines": [{"url": ENGINE, "name": "gpu\n1"}]}, "is not a name"),
        ({"models": {"a": {"aliases": ["b"]}, "b": {}}}, "two models have the name or alias 'b'"),
        ({"tenants": {"": {}}}, "is not a name"),
    ],
)
def test_a_contradiction_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        config(**fields)


@pytest.mark.anyio
async def test_an_engine_has_its_configured_name_slots_and_key(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession
) -> None:
    section = {"url": engine_url, "name": "gpu-1", "in_flight": 1, "api_key": "secret"}
    with gateway(section) as url:
        async with http.get(url + "/health") as response:
            assert [each["name"] for each in (await response.json())["engines"]] == ["gpu-1"]
        assert await metric(http, url, 'lengthwise_engine_up{engine="gpu-1"}') == 1
        assert (await post(http, url, body()))[0] == 200
    assert engine.headers[0]["authorization"] == "Bearer secret"
