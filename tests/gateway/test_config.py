from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.cli.model_options import validated
from lengthwise.client.request_classes import ClassConfig
from lengthwise.errors import InputError
from lengthwise.gateway import GatewayConfig
from lengthwise.gateway.config import EngineConfig, ModelConfig, TenantConfig, read_config
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


def test_an_api_key_is_not_in_the_repr() -> None:
    assert "hunter2" not in repr(config(engines=[{"url": ENGINE, "api_key": "hunter2"}]))


def test_tenants_and_models_are_sections_by_name() -> None:
    read = config(tenants={"team-a": {"requests_per_minute": 600}, "team-b": None}, models={"m": None})
    assert [(tenant.name, tenant.requests_per_minute) for tenant in read.tenants.values()] == [
        ("team-a", 600),
        ("team-b", None),
    ]
    assert read.models["m"].aliases == ()


def test_the_default_tenant_may_declare_priority_and_length_unless_configured() -> None:
    assert config().default_tenant.may_set_priority
    strict = config(tenants={"default": {"may_set_priority": False}}).default_tenant
    assert (strict.may_set_priority, strict.may_declare_length) == (False, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engines": [ENGINE, {"url": ENGINE + "/v1"}]}, "an engine is given twice"),
        ({"engines": [{"url": ENGINE, "name": "engine-1"}, "http://127.0.0.1:8001"]}, "two engines have the name"),
        ({"engines": [{"url": ENGINE, "name": "gpu\n1"}]}, "is not a name"),
        ({"models": {"a": {"aliases": ["b"]}, "b": {}}}, "two models have the name or alias 'b'"),
        ({"tenants": {"": {}}}, "is not a name"),
        ({"tenants": {"a": {"ttft_s": 0}}}, "greater than or equal to 0.001"),
        ({"models": {"m": {"per_token_s": -1}}}, "greater than or equal to 0.001"),
        ({"classes": {"chat": {"slo_s": float("nan")}}}, "finite number"),
    ],
)
def test_a_contradiction_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
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


EXAMPLE = Path(__file__).parents[2] / "docs" / "guides" / "fleet.yaml"


def read(path: Path, **overrides: Any) -> GatewayConfig:
    return read_config(path, overrides=overrides, defaults={})


def test_the_example_file_is_valid_and_names_its_engines() -> None:
    example = read(EXAMPLE)
    assert [engine.name for engine in example.engines] == ["gpu-1", None]
    assert example.tenants["team-a"].weight == 2


def test_the_example_file_shows_every_field_of_its_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_1_KEY", "secret")
    whole = tmp_path / "whole.yaml"
    whole.write_text(re.sub(r"^(\s*)#(?=\w)", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))
    shown = read(whole)
    assert EngineConfig.model_fields.keys() == shown.engines[0].model_fields_set
    assert TenantConfig.model_fields.keys() == shown.tenants["team-a"].model_fields_set
    assert ClassConfig.model_fields.keys() == shown.classes["interactive"].model_fields_set
    assert all(ModelConfig.model_fields.keys() == model.model_fields_set for model in shown.models.values())
    assert shown.engines[0].api_key is not None
    assert shown.engines[0].api_key.get_secret_value() == "secret"


def test_overrides_replace_the_values_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"engines: [{ENGINE}]\nport: 1\npolicy: sjf\n")
    got = read(file, port=2, engines=["http://127.0.0.1:9"])
    assert (got.port, got.policy, got.engines[0].url) == (2, "sjf", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "engines: [http://a:1]\nclasses: {batch: {priority: 1}}\ntenants: {team-a: {request_class: bach}}",
            "field 'request_class': tenant team-a has the class 'bach'; known are batch",
        ),
        ("engines: [http://a:1]\nclasses: {batch: {ttft_s: 0}}", "field 'classes.batch.ttft_s'"),
        ("engines: [http://a:1]\ntenants: {a: {per_token_s: .nan}}", "field 'tenants.a.per_token_s'"),
        ("engines: [nonsense]", "fleet.yaml, field 'engines.0.url': 'nonsense' is not the URL of an engine"),
        ("engines: [{name: a}]", "fleet.yaml, field 'engines.0.url': is missing"),
        (
            "engines: [{url: 'http://a', kind: tgi}]",
            "field 'engines.0.kind': 'tgi' is not valid; Input should be 'auto'",
        ),
        ("engines: [{url: 'http://a', api_key: [s3cret]}]", "field 'engines.0.api_key': this value is not valid"),
        ("engines: [{url: 'http://a', api_key: '${NOT_SET}'}]", "environment variable NOT_SET is not set"),
        ("engines: ['http://a']\nprot: 1", "field 'prot': there is no field 'prot'; did you mean port?"),
        ("engines: ['http://a']\ntenants: {t: {rpm: 1}}", "field 'tenants.t.rpm': there is no field 'rpm'"),
        ("engines: ['http://a']\nin_flight: 0", "field 'in_flight': '0' is not valid; Input should be greater than"),
        ("engines: ['http://a']\npolicy: sjff", "field 'policy': there is no policy 'sjff'; did you mean sjf?"),
        ("engines: ['http://a']\nengines: ['http://b']", "fleet.yaml, line 2: 'engines' is given twice in one section"),
        ("engines: [", "fleet.yaml, line 1: "),
        ("- http://a", "fleet.yaml: holds no fields; begin with engines:"),
        ("", "fleet.yaml: holds no fields"),
        ("engines: [['http://user:s3cret@a']]", "field 'engines.0': this value is not valid"),
        ("engines: []", "field 'engines': this value is not valid; Tuple should have at least 1 item"),
    ],
)
def test_an_error_in_a_file_names_the_file_and_the_field(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(file)
    assert "s3cret" not in str(caught.value)
