"""Policies by name: parameters, wrappers, lists, and the errors for wrong ones."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lengthwise import specs
from lengthwise.errors import InputError
from lengthwise.policies import POLICIES, WRAPPERS, Job, Policy, Sjf, make_policy
from lengthwise.policies.registry import limits_kept


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("srpt:c=0.5", "srpt:c=0.5"),
        ("srpt:c=0", "srpt"),
        (" tie:beta = 0.10, tau=60 ", "tie:beta=0.1,tau=60"),
        ("tie:tau=60,beta=0.10", "tie:beta=0.1,tau=60"),
        ("tie:beta=adaptive", "tie"),
        ("fair(tie)", "fair(tie)"),
        ("bounded(srpt:c=0.5):wait=120", "bounded(srpt:c=0.5):wait=120"),
        ("classes(fair(bounded(sjf):overtakes=5):quantum=100)", "classes(fair(bounded(sjf):overtakes=5):quantum=100)"),
    ],
)
def test_a_name_contains_parameters_and_wrappers(spec: str, name: str) -> None:
    assert make_policy(spec).name == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sfj", r"there is no policy 'sfj'; did you mean sjf\? known are fcfs, sjf"),
        ("", "there is no policy ''; known are fcfs"),
        ("srpt:d=1", r"policy srpt has no parameter 'd=1'; it takes c, times, as in srpt:c=NUMBER"),
        ("srpt:0.8", r"policy srpt has no parameter '0.8'; it takes c"),
        ("srpt:c=lots", r"c of policy srpt is 'lots'; give a number from 0 to 1e\+09"),
        ("srpt:c=nan", "c of policy srpt is nan"),
        ("srpt:c=-1", "c of policy srpt is -1.0"),
        ("srpt:c=1,c=2", "'c' of policy srpt is given twice"),
        ("tie:beta=often", "beta of policy tie is 'often'; give a number from 0 to 1e.09, or 'adaptive'"),
        ("tie:gamma=adaptive", "gamma of policy tie is 'adaptive'"),
        ("fcfs:x=1", "policy fcfs has no parameter 'x=1'; it takes none"),
        ("fair", r"'fair' is not a policy by itself; it wraps one, as in fair\(sjf\)"),
        ("sjf(tie)", "policy sjf wraps no other; those that do are classes, fair, bounded"),
        ("fare(tie)", r"there is no policy 'fare'; did you mean fair\?"),
        ("fair()", "there is no policy ''"),
        ("fair(tie", "'fair.tie' is not a policy"),
        ("fair(sjf):quantum=0", "quantum of policy fair is 0.0; give a number from 1"),
    ],
)
def test_the_error_for_a_wrong_name_names_the_right_one(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_policy(spec)


OUTSIDE = "tests.conformance.outside_policy"


def test_a_dotted_path_makes_a_policy_from_outside_the_package_with_parameters_and_wrappers() -> None:
    policy = make_policy(f"bounded({OUTSIDE}:ShortPrompt:rate=5):wait=9")
    assert policy.name == f"bounded({OUTSIDE}:ShortPrompt:rate=5):wait=9"
    assert make_policy(f"{OUTSIDE}:ShortPrompt").name == f"{OUTSIDE}:ShortPrompt"
    assert isinstance(policy, Policy)


def test_an_entry_point_makes_a_policy_by_its_registered_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def registered(group: str) -> list[EntryPoint]:
        assert group == "lengthwise.policies"
        return [EntryPoint("short_prompt", f"{OUTSIDE}:Misnamed", group)]

    monkeypatch.setattr(specs, "entry_points", registered)
    assert make_policy("fair(short_prompt:rate=2)").name == "fair(short_prompt:rate=2)"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "Unfinished",
            "Unfinished is not a policy: it has no eviction_scores, .*keys.*; subclass lengthwise.*BasePolicy",
        ),
        ("Unfinished:c=1", r"policy .*Unfinished cannot be made: .*arguments"),
        ("ShortPrompt:speed=1", "ShortPrompt has no parameter 'speed=1'; it takes rate"),
        ("ShortPrompt:rate=-1", "rate of policy .*ShortPrompt is -1.0"),
        ("Misnamed", "the name of policy .*Misnamed is 'short_prompt', which does not find it again"),
        ("OUTSIDE", "has no OUTSIDE"),
    ],
)
def test_a_class_that_is_no_policy_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_policy(f"{OUTSIDE}:{spec}")


def test_a_policy_object_is_returned_unchanged_and_another_type_is_refused() -> None:
    sjf = Sjf()
    assert make_policy(sjf) is sjf
    with pytest.raises(InputError, match="int is not a policy"):
        make_policy(3)  # type: ignore[arg-type]


def test_every_policy_has_a_section_and_a_figure_in_the_docs() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "reference" / "policies.md").read_text()
    for name in (*POLICIES, *WRAPPERS):
        assert f"# {name}\n" in text
        assert f"](../figures/policy_{name}.svg)" in text
        assert (docs / "figures" / f"policy_{name}.svg").is_file()


def test_every_policy_documents_its_formula_and_the_case_without_a_prediction() -> None:
    for name, kind in POLICIES.items():
        text = " ".join((kind.__doc__ or "").split())
        assert "key =" in text or "place:" in text, name
        assert "prediction" in text, name
        assert "Memory short" in text, name
    for name, wrapper in WRAPPERS.items():
        assert name + "(" in (wrapper.__doc__ or "")


@pytest.mark.parametrize(
    ("spec", "limits"),
    [
        ("sjf", {}),
        ("ontime", {}),
        ("slo", {}),
        ("slo:seconds=30", {"e2e_limit_s": 30.0}),
        ("classes(fair(ontime:ttft=2,per_token=0.05))", {"ttft_limit_s": 2.0, "per_token_limit_s": 0.05}),
    ],
)
def test_the_limits_that_a_policy_keeps_have_the_names_of_a_job_s(spec: str, limits: dict[str, float]) -> None:
    assert limits_kept(make_policy(spec)) == limits
    job = Job("a", 100.0)
    assert job.limits == {}
    job.use_limits(slo_s=30.0, ttft_s=2.0, per_token_s=0.05)
    assert limits.items() <= job.limits.items()
