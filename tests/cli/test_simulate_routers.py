from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app

FLEET = ("--fleet", "3*llama-3-8b@a100", "--max-num-seqs", "4", "--requests", "120", "--load", "0.9")


def run(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["simulate", "castillo", *FLEET, *arguments, "--json"], env={"LENGTHWISE_DATA": ""})
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_routers_are_compared_on_the_same_requests() -> None:
    facts = run(
        "--router", "round_robin,least_outstanding,lengthwise", "--policy", "fcfs", "--predictor", "oracle,none"
    )
    runs = facts["runs"]
    assert isinstance(runs, list)
    # FCFS needs no prediction, so it is run once behind each router that needs none either.
    assert [(each["router"], each["policy"], each["predictor"]) for each in runs] == [
        ("round_robin", "fcfs", None),
        ("least_outstanding", "fcfs", None),
        ("lengthwise", "fcfs", "oracle"),
        ("lengthwise", "fcfs", "none"),
    ]
    assert facts["routers"] == ["round_robin", "least_outstanding", "lengthwise"]
    assert runs[0]["over_fcfs"]["e2e_mean"]["ratio"] == 1
    assert runs[2]["over_fcfs"]["e2e_mean"]["ratio"] != 1


def test_a_list_of_routers_may_contain_parameters() -> None:
    facts = run("--router", "power_of_two:seed=3,random", "--policy", "fcfs")
    assert facts["routers"] == ["power_of_two:seed=3", "random"]


def test_an_unknown_router_is_refused_with_a_suggestion() -> None:
    done = CliRunner().invoke(app, ["simulate", "castillo", *FLEET, "--router", "lengthwize"])
    assert done.exit_code == 2
    assert "did you mean lengthwise" in done.output


def test_requests_of_an_engine_that_fails_are_resubmitted_and_counted() -> None:
    calm, failing = (
        run("--router", "lengthwise", *options)["runs"] for options in ((), ("--down", "0@5", "--up", "0@9"))
    )
    assert isinstance(calm, list)
    assert isinstance(failing, list)
    assert (calm[0]["resubmissions"], calm[0]["refused"]) == (0, 0)
    assert failing[0]["resubmissions"] > 0
    assert failing[0]["refused"] == 0
    assert failing[0]["e2e_s"]["mean"] > calm[0]["e2e_s"]["mean"]


def test_routing_time_delays_only_the_named_router() -> None:
    routers = ("--router", "round_robin,least_outstanding", "--policy", "fcfs")
    free, one, both = (
        [each["ttft_s"]["mean"] for each in runs]
        for runs in (
            run(*routers)["runs"],
            run(*routers, "--routing-time", "round_robin=10000")["runs"],
            run(*routers, "--routing-time", "10000")["runs"],
        )
        if isinstance(runs, list)
    )
    assert one[0] > free[0]
    assert one[1] == free[1]
    assert both[0] == one[0]
    assert both[1] > free[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--down", "7@5"), "there is no engine 7"),
        (("--down", "0@5,1@6,2@7"), "no engine is up in the end"),
        (("--drain", "soon"), "as in 3@120"),
        (("--routing-time", "quick"), "give microseconds"),
        (("--routing-time", "e3=5"), "there is no router 'e3'"),
        (("--routing-time", "-5"), "routing_s of lengthwise"),
    ],
)
def test_an_invalid_option_is_refused(options: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["simulate", "castillo", *FLEET, *options], env={"LENGTHWISE_DATA": ""})
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
