"""What the gateway relies on in SGLang, in the sources of one release, which are fetched and never committed.

SGLang itself was not run: neither its kernels nor a CPU build of it are here.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lengthwise.client import scrape

RELEASE = "0.5.23"
ROOT = Path(__file__).parents[2] / ".upstream" / f"sglang-{RELEASE}" / "sglang" / "srt"
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="the sources of SGLang are not here: run `make upstream`")


def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def function(path: str, name: str) -> str:
    """The source of a function or method, on one line."""
    found = next(node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef) and node.name == name)
    return " ".join(ast.unparse(found).split())


@pytest.mark.parametrize("request_class", ["CompletionRequest", "ChatCompletionRequest"])
def test_a_request_may_have_a_priority(request_class: str) -> None:
    classes = {
        node.name: node for node in tree("entrypoints/openai/protocol.py").body if isinstance(node, ast.ClassDef)
    }
    fields = {
        node.target.id: ast.unparse(node.annotation)
        for node in classes[request_class].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert fields["priority"] == "Optional[int]"


def test_the_higher_priority_runs_first_and_equal_ones_in_order_of_arrival() -> None:
    assert "1 if schedule_low_priority_values_first else -1" in function("managers/schedule_policy.py", "__init__") or (
        "self.priority_sign = 1 if schedule_low_priority_values_first else -1"
        in (ROOT / "managers/schedule_policy.py").read_text()
    )
    order = function("managers/schedule_policy.py", "_sort_by_priority_and_fcfs")
    assert "x.priority * priority_sign, x.time_stats.wait_queue_entry_time" in order


def test_a_priority_is_ignored_without_priority_scheduling_unless_the_server_aborts_on_it() -> None:
    source = function("managers/scheduler.py", "_set_or_validate_priority")
    assert "if self.enable_priority_scheduling and req.priority is None" in source
    assert "req.priority is not None and self.abort_on_priority_when_disabled" in source


def test_running_requests_are_preempted_by_priority_unless_that_is_disabled() -> None:
    source = " ".join((ROOT / "managers/scheduler.py").read_text().split())
    assert (
        "self.enable_priority_preemption = ( self.enable_priority_scheduling and not get_schedule()."
        "disable_priority_preemption )" in source
    )


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info", "/v1/models", "/health"])
def test_the_server_has_the_paths_that_are_asked(path: str) -> None:
    assert f'"{path}"' in (ROOT / "entrypoints/http_server.py").read_text()


@pytest.mark.parametrize("name", [name for name in sorted(scrape._LOAD) if name.startswith("sglang:")])
def test_the_metrics_that_are_read_exist(name: str) -> None:
    assert f'"{name}"' in (ROOT / "observability/metrics_collector.py").read_text()
