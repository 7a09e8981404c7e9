"""One grammar for the names of policies, routers, predictors and fleets."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lengthwise import specs
from lengthwise.errors import InputError
from lengthwise.specs import Spec, find, parse_spec, split_specs


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("sjf", Spec("sjf")),
        (" tie : beta = 0.10, tau=60 ", Spec("tie", parameters={"beta": 0.1, "tau": 60.0})),
        ("tie:beta=adaptive", Spec("tie", parameters={"beta": "adaptive"})),
        ("noisy:0.6", Spec("noisy", value=0.6)),
        ("noisy:log=0.5", Spec("noisy", parameters={"log": 0.5})),
        ("llama-3-8b@a100", Spec("llama-3-8b@a100")),
        ("fair(tie:beta=1):quantum=9", Spec("fair", None, {"quantum": 9.0}, None, Spec("tie", None, {"beta": 1.0}))),
        ("bounded(fair(sjf))", Spec("bounded", inner=Spec("fair", inner=Spec("sjf")))),
        ("my_package.module:MyPolicy", Spec("my_package.module", "MyPolicy")),
        ("module:MyPolicy:c=0.5", Spec("module", "MyPolicy", {"c": 0.5})),
        ("fair(a.b:C:d=1)", Spec("fair", inner=Spec("a.b", "C", {"d": 1.0}))),
        ("a.b:Wrapper(sjf):d=1", Spec("a.b", "Wrapper", {"d": 1.0}, None, Spec("sjf"))),
        ("", Spec("")),
    ],
)
def test_a_spec_is_a_name_with_parameters_wrappers_and_dotted_paths(text: str, spec: Spec) -> None:
    assert parse_spec(text) == spec


@pytest.mark.parametrize("text", ["fair(tie", "a b", "tie)", "fair(tie)x", "a=b"])
def test_anything_else_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="is not a router; write NAME"):
        parse_spec(text, "router")


def test_a_wrong_type_is_an_input_error() -> None:
    with pytest.raises(InputError, match="a router is named by a string, not by 3"):
        parse_spec(3, "router")  # type: ignore[arg-type]


def test_a_parameter_is_given_once_and_must_be_known() -> None:
    with pytest.raises(InputError, match="'c' of policy srpt is given twice"):
        parse_spec("srpt:c=1,c=2", "policy")
    with pytest.raises(InputError, match="router e2 has no parameter 'd=1'; it takes c, times, as in e2:c=NUMBER"):
        parse_spec("e2:d=1").arguments(["c", "times"], "router")
    with pytest.raises(InputError, match=r"router e2 has no parameter '0.8'; it takes none"):
        parse_spec("e2:0.8").arguments([], "router")
    assert parse_spec("e2:c=1").arguments({"c": 0}, "router") == {"c": 1.0}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fcfs", ["fcfs"]),
        ("fcfs, sjf", ["fcfs", "sjf"]),
        ("tie:beta=0.1,tau=60,sjf", ["tie:beta=0.1,tau=60", "sjf"]),
        ("fair(tie:beta=0.1,tau=6):quantum=9,srpt:c=1", ["fair(tie:beta=0.1,tau=6):quantum=9", "srpt:c=1"]),
        ("a.b:C:d=1,e=2,a.b:D", ["a.b:C:d=1,e=2", "a.b:D"]),
        ("", [""]),
    ],
)
def test_a_list_is_split_between_specs_only(text: str, names: list[str]) -> None:
    assert split_specs(text) == names


def test_built_ins_come_before_entry_points_and_entry_points_before_dotted_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def registered(group: str) -> list[EntryPoint]:
        assert group == "lengthwise.routers"
        points = {"near": "collections:OrderedDict", "mine": "collections:Counter", "gone": "no_such_module:X"}
        return [EntryPoint(name, value, group) for name, value in points.items()]

    monkeypatch.setattr(specs, "entry_points", registered)
    builtins = {"near": 1, "far": 2}
    assert find(parse_spec("near"), "router", builtins) == 1
    assert find(parse_spec("mine"), "router", builtins).__name__ == "Counter"
    assert find(parse_spec("collections:deque"), "router", builtins).__name__ == "deque"
    with pytest.raises(InputError, match=r"router gone \(no_such_module:X\) does not load"):
        find(parse_spec("gone"), "router", builtins)
    with pytest.raises(InputError, match=r"there is no router 'miin'; did you mean mine\? known are near, far, mine"):
        find(parse_spec("miin"), "router", builtins)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module:X", "there is no module 'no_such_module' for policy 'no_such_module:X'; install"),
        ("lengthwise.no_such:X", "there is no module 'lengthwise.no_such'"),
        ("collections:NoSuch", "module 'collections' has no NoSuch; write MODULE:CLASS"),
        ("tie:adaptive", "policy tie has no parameter 'adaptive'; write PARAMETER=NUMBER"),
        ("tia:adaptive", r"there is no policy 'tia'; did you mean tie\?"),
    ],
)
def test_a_dotted_path_that_finds_nothing_is_an_input_error(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(parse_spec(text), "policy", {"tie": 1})


def test_a_module_in_the_current_folder_is_found_and_its_import_error_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_by_path.py").write_text("class Mine: ...\n")
    (tmp_path / "broken_by_import.py").write_text("import no_such_module\n")
    (tmp_path / "broken_at_once.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert find(parse_spec("found_by_path:Mine"), "policy", {}).__name__ == "Mine"
    for module in ("broken_by_import", "broken_at_once"):
        with pytest.raises(InputError, match=f"policy {module}:X does not load: "):
            find(parse_spec(f"{module}:X"), "policy", {})


def test_a_name_from_a_network_imports_nothing() -> None:
    with pytest.raises(InputError, match="may not be loaded by path here; known are tie"):
        find(parse_spec("collections:deque"), "policy", {"tie": 1}, imports=False)
