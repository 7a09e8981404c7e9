"""Write docs/reference/metrics.md from the metrics that the gateway exports.

python -m scripts.metrics_page            # writes the page
python -m scripts.metrics_page --print    # prints it
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from lengthwise.gateway import GatewayConfig, create_app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "metrics.md"

HEAD = """\
# Metrics

`GET /metrics` of the gateway, in Prometheus's text format. Times are in seconds. Labels are bounded: the configured
engines and tenants, and short fixed lists; an engine has its name in the configuration, never its address. With several
workers each sample has the label `worker`; sum over it. This page is made by `python -m scripts.metrics_page`.

`configs/grafana-dashboard.json` and `configs/prometheus-alerts.yaml` use these names; a test checks that they exist
([dashboard](../guides/dashboard.md#grafana-and-alerts)).

| name | type | labels | meaning |
|---|---|---|---|
"""


async def families() -> list[tuple[str, str, list[str], str]]:
    """Return name, type, labels and text of every metric, those of optional parts included."""
    with tempfile.TemporaryDirectory() as folder:
        fields = {
            "engines": ["http://127.0.0.1:1", "http://127.0.0.1:2"],
            "router": "round_robin",
            "predictor": "none",
            "access_log": f"{folder}/access.log",
            "learn": f"{folder}/learn",
        }
        app = create_app(GatewayConfig.model_validate(fields))
        return sorted(app.state.metrics.families())


def page() -> str:
    """Return the page."""
    rows = [
        f"| `{name}` | {kind} | {', '.join(labels)} | {text} |" for name, kind, labels, text in asyncio.run(families())
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        print(page())  # noqa: T201
    else:
        PAGE.write_text(page(), encoding="utf-8")
