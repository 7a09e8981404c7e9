from __future__ import annotations

import json

from typer.testing import CliRunner

from lengthwise.cli import app

FLEET = ("--fleet", "3*llama-3-8b@a100", "--max-num-seqs", "4", "--requests", "120", "--load", "0.9")


def run(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["simulate", "castillo", *FLEET, *arguments, "--json"], env={"LENGTHWISE_DATA": ""})
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_routers_are_compared_on_the_same_requests() -> None:
    facts = run("--router", "round_robin,least_outstanding,lengthwise", "--predictor", "oracle,none")
    runs = facts["runs"]
    assert isinstance(runs, list)
    # FCFS needs no belief, so it is run once behind each router that needs none either.
    assert [(each["router"], each["policy"], each["predictor"]) for each in runs] == [
        ("round_robin", "fcfs", None),
        ("least_outstanding", "fcfs", None),
        ("lengthwise", "fcfs", "oracle"),
        ("lengthwise", "fcfs", "none"),
    ]
    assert facts["routers"] == ["round_robin", "least_outstanding", "lengthwise"]
    assert runs[0]["over_fcfs"]["e2e_mean"]["ratio"] == 1
    assert runs[2]["over_fcfs"]["e2e_mean"]["ratio"] != 1


def test_a_router_with_parameters_is_one_of_a_list() -> None:
    facts = run("--router", "power_of_two:seed=3,random", "--policy", "fcfs")
    assert facts["routers"] == ["power_of_two:seed=3", "random"]


def test_a_router_that_is_unknown_is_told() -> None:
    done = CliRunner().invoke(app, ["simulate", "castillo", *FLEET, "--router", "lengthwize"])
    assert done.exit_code == 2
    assert "did you mean lengthwise" in done.output
