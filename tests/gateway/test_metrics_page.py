"""Grafana's dashboard and the alert rules use metrics and labels that exist."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from lengthwise.gateway import GatewayConfig, create_app
from lengthwise.lengths import LogT
from lengthwise.policies import Job
from scripts import docs_pages

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
_SELECTOR = re.compile(r"\b(lengthwise_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of each name that Prometheus stores."""
    found = {}
    for name, kind, labels, _ in asyncio.run(docs_pages.metric_families()):
        for suffix in SUFFIXES.get(kind, ("",)):
            found[name + suffix] = {*labels, *(["le"] if suffix == "_bucket" else [])}
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CONFIGS / "grafana-dashboard.json").read_text())["panels"]
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CONFIGS / "prometheus-alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        yield from ((target["expr"], target["legendFormat"]) for target in panel["targets"])
    for rule in rules():
        yield rule["expr"], json.dumps(rule["annotations"])


@pytest.mark.parametrize(("expression", "text"), list(expressions()))
def test_every_metric_and_label_of_an_expression_exists(
    exported: dict[str, set[str]], expression: str, text: str
) -> None:
    used = _SELECTOR.findall(expression)
    assert used
    labels = set[str]()
    for name, selector in used:
        assert name in exported, f"{name} is not exported"
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector)) <= exported[name]
        labels |= exported[name]
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
    assert grouped <= labels
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
    assert shown <= grouped


def test_every_alert_has_a_severity_a_summary_and_a_description() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_the_dashboard_has_variables_for_engines_models_and_tenants_and_a_panel_for_calibration() -> None:
    variables = json.loads((CONFIGS / "grafana-dashboard.json").read_text())["templating"]["list"]
    assert {"engine", "model", "tenant"} <= {each["name"] for each in variables}
    assert "Answers inside the 90 % interval" in {panel["title"] for panel in panels()}
    assert all(panel["description"] for panel in panels())


def test_answers_count_by_model_and_by_where_they_are_in_the_predicted_interval() -> None:
    async def counted() -> bytes:
        metrics = create_app(
            GatewayConfig.model_validate({"engines": ["http://127.0.0.1:1"], "state": "off"})
        ).state.metrics
        job = Job("1", 0.0, prediction=LogT(5.0, 0.5, 10_000))
        for tokens in (3, 148, 150, 9000):
            metrics.answered(job, "m", tokens)
        for number in range(300):
            metrics.answered(job, f"m{number}", 148)
        return bytes(await metrics.exposition())

    lines = asyncio.run(counted()).decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("lengthwise_predicted_answers_total{"))
    name = 'lengthwise_predicted_answers_total{interval="%s",model="%s"}'
    assert [float(found[name % (place, "m")]) for place in ("below", "inside", "above")] == [1, 2, 1]
    assert len({key.partition("model=")[2] for key in found}) == 256  # further models are others


def test_panels_do_not_overlap() -> None:
    taken = set[tuple[int, int]]()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
