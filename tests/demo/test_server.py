"""The demo by HTTP: one process from the first frame to the verdict."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.demo.conftest import SMALL, frames, running_demo


def post(url: str, content: Any, kind: str = "application/json") -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url + "control", json.dumps(content).encode(), {"content-type": kind})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def found(short_answers: str) -> dict[str, Any]:
    """Run one race, change everything in it, and keep what was seen."""
    seen: dict[str, Any] = {"frames": []}
    with running_demo(*SMALL, "--from", short_answers, "--load", "1.2", "--seconds", "40", "--json") as (url, process):
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310
            seen["page"], seen["headers"] = answer.read().decode(), dict(answer.headers)
        with urllib.request.urlopen(url + "events", timeout=60) as stream:  # noqa: S310
            for name, content in frames(iter(stream)):
                if name == "hello":
                    seen["hello"] = content
                elif name == "bye":
                    seen["bye"] = True
                else:
                    drive(url, content, seen)
        out, seen["stderr"] = process.communicate(timeout=120)
        seen["json"], seen["rc"] = json.loads(out), process.returncode
    return seen


def drive(url: str, frame: dict[str, Any], seen: dict[str, Any]) -> None:
    seen["frames"].append(frame)
    if frame["sides"][1]["answered"] >= 3 and "answers" not in seen:
        seen["answers"] = {
            "load": post(url, {"load": 1.5}),
            "policy": post(url, {"policy": "sjf"}),
            "predictor": post(url, {"predictor": "true lengths"}),
            "bad load": post(url, {"load": 99}),
            "bad policy": post(url, {"policy": "no_such"}),
            "imported policy": post(url, {"policy": "os:getcwd"}),
            "bad predictor": post(url, {"predictor": "crystal ball"}),
            "nothing": post(url, {}),
            "a list": post(url, []),
            "text": post(url, {"load": 1.5}, "text/plain"),
        }
    elif "answers" in seen and frame["sides"][1]["answered"] >= 25 and "finish" not in seen:
        seen["finish"] = post(url, {"finish": True})


def test_the_page_needs_no_other_host(found: dict[str, Any]) -> None:
    assert "default-src 'none'" in found["headers"]["content-security-policy"]
    assert "https://" not in found["page"]


def test_both_sides_get_the_same_requests(found: dict[str, Any]) -> None:
    last = found["frames"][-1]["sides"]
    assert last[0]["sent"] == last[1]["sent"]
    assert [side["failed"] for side in last] == [0, 0]
    assert any(side["queue"] for frame in found["frames"] for side in frame["sides"])
    assert all(len(side["slots"]) <= found["hello"]["slots"] for frame in found["frames"] for side in frame["sides"])


def test_load_policy_and_predictor_change_while_it_runs_and_figures_begin_anew(found: dict[str, Any]) -> None:
    for name in ("load", "policy", "predictor"):
        assert found["answers"][name] == (200, {"ok": True})
    after = found["frames"][-1]
    assert (after["load"], after["policy"], after["predictor"]) == (1.5, "sjf", "true lengths")
    assert after["since"] > 0


@pytest.mark.parametrize("name", ["bad load", "bad policy", "imported policy", "bad predictor", "nothing", "a list"])
def test_a_wrong_change_is_refused_with_a_sentence(found: dict[str, Any], name: str) -> None:
    status, answer = found["answers"][name]
    assert status == 400
    assert answer["error"]


def test_a_page_of_another_host_cannot_change_anything(found: dict[str, Any]) -> None:
    assert found["answers"]["text"][0] == 415


def test_it_ends_with_the_verdict_and_the_way_to_ones_own_engine(found: dict[str, Any]) -> None:
    assert found["bye"]
    assert found["rc"] == 0
    assert found["frames"][-1]["verdict"]["headline"]
    facts = found["json"]
    assert "sjf" in facts["verdict"]
    assert "TRUE LENGTHS" in facts["verdict"]
    assert facts["requests"] >= 20
    assert len(facts["within"]) == len(facts["runs"]) == 2
    assert facts["next"][0].startswith("lengthwise serve --engine")
    assert "Traceback" not in found["stderr"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_without_noise(sent: signal.Signals) -> None:
    with running_demo(*SMALL) as (url, process):
        with urllib.request.urlopen(url + "events", timeout=60) as stream:  # noqa: S310
            next(frames(iter(stream)))
            if sent is signal.SIGINT:
                os.killpg(process.pid, sent)  # a terminal sends it to all processes
            else:
                process.send_signal(sent)
            names = [name for name, _ in frames(iter(stream))]
        out, err = process.communicate(timeout=120)
    assert names[-1] == "bye"
    assert process.returncode == 0
    assert err == ""
    assert "too few for a verdict" in out
