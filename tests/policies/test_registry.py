"""Policies by name: parameters, wrappers, lists, and what is said of a name that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.errors import InputError
from lengthwise.policies import POLICIES, WRAPPERS, make_policy, split_policies


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
def test_a_name_spells_parameters_and_wrappers(spec: str, name: str) -> None:
    assert make_policy(spec).name == name


@pytest.mark.parametrize(
    ("spec", "told"),
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
        ("fair", r"'fair' is not a policy by itself; it goes around one, as in fair\(sjf\)"),
        ("sjf(tie)", "policy sjf goes around no other; those that do are classes, fair, bounded"),
        ("fare(tie)", r"there is no policy 'fare'; did you mean fair\?"),
        ("fair()", "there is no policy ''"),
        ("fair(tie", "'fair.tie' does not spell a policy"),
        ("fair(sjf):quantum=0", "quantum of policy fair is 0.0; give a number from 1"),
    ],
)
def test_a_wrong_name_is_told_what_would_be_right(spec: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_policy(spec)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fcfs", ["fcfs"]),
        ("fcfs, sjf", ["fcfs", "sjf"]),
        ("tie:beta=0.1,tau=60,sjf", ["tie:beta=0.1,tau=60", "sjf"]),
        ("fair(tie:beta=0.1,tau=6):quantum=9,srpt:c=1", ["fair(tie:beta=0.1,tau=6):quantum=9", "srpt:c=1"]),
        ("", [""]),
    ],
)
def test_a_list_is_split_between_policies_only(text: str, names: list[str]) -> None:
    assert split_policies(text) == names


def test_every_policy_has_its_place_and_its_figure_in_the_docs() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "policies.md").read_text()
    for name in (*POLICIES, *WRAPPERS):
        assert f"# {name}\n" in text
        assert f"](figures/policy_{name}.svg)" in text
        assert (docs / "figures" / f"policy_{name}.svg").is_file()


def test_every_policy_says_what_it_does_by_a_formula_and_without_a_prediction() -> None:
    for name, kind in POLICIES.items():
        text = " ".join((kind.__doc__ or "").split())
        assert "key =" in text or "place:" in text, name
        assert "prediction" in text, name
        assert "Memory short" in text, name
    for name, wrapper in WRAPPERS.items():
        assert name + "(" in (wrapper.__doc__ or "")
