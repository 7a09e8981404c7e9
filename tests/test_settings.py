"""Settings from YAML: an invalid value is named by file and field, with a hint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lengthwise.errors import InputError
from lengthwise.settings import invalid, read_yaml


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    slots: int = Field(1, ge=1)
    api_key: str = ""


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")

    parts: tuple[Part, ...] = ()
    first: Part | None = None
    name: str


@dataclass
class Limits:
    slots: int = 1

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise InputError(f"{self.slots}", field="slots", hint="at least 1")


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (Whole, {}, "x.yaml, field 'name': is missing"),
        (Whole, {"nme": "a"}, "field 'name': is missing"),
        (
            Whole,
            {"name": "a", "fist": {}},
            "field 'fist': there is no field 'fist'; did you mean first? known are parts",
        ),
        (
            Whole,
            {"name": "a", "first": {"slot": 1}},
            "field 'first.slot': there is no field 'slot'; did you mean slots?",
        ),
        (
            Whole,
            {"name": "a", "parts": [{"key": 1}]},
            "field 'parts.0.key': there is no field 'key'; did you mean api_key?",
        ),
        (Whole, {"name": "a", "parts": [{"slots": 0}]}, "field 'parts.0.slots': '0' is not valid; Input should be"),
        (Whole, {"name": "a", "parts": [{"api_key": 7}]}, "field 'parts.0.api_key': this value is not valid"),
        (Whole, {"name": ["s3cret"]}, "field 'name': this value is not valid"),
        (Limits, {"slot": 2}, "field 'slot': there is no field 'slot'; did you mean slots? known are slots"),
        (Limits, {"slots": 0}, "field 'slots': 0; at least 1"),
    ],
)
def test_the_first_invalid_setting_is_named(kind: type, content: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(content)
    assert message in str(invalid(caught.value, kind, source="x.yaml"))


def test_a_section_of_a_file_is_part_of_the_field() -> None:
    with pytest.raises(ValidationError) as caught:
        Part.model_validate({"slots": 0})
    assert "field 'engine.slots'" in str(invalid(caught.value, Part, source="x.yaml", section="engine"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 1, c: 2}", "x.yaml, line 2: 'c' is given twice in one section"),
        ("a: [", "is not YAML"),
        ("- 1", "holds no fields; begin with a:"),
        ("1: 2", "holds no fields"),
        (None, "x.yaml: no such file"),
    ],
)
def test_a_file_without_fields_is_a_one_line_error(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_yaml(path, hint="begin with a:")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_invalid_fields_are_named_at_once_each_once() -> None:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(Whole).validate_python({"parts": [{"slots": 0}, {"slots": "x"}], "nam": 1, "first": {"slots": 0}})
    found = str(invalid(error.value, Whole, source="fleet.yaml"))
    assert found.startswith("fleet.yaml, field 'parts.0.slots': '0' is not valid")
    assert "; also field 'first.slots': '0' is not valid" in found
    assert "; also field 'name': is missing" in found
    assert "; also field 'nam': there is no field 'nam'; did you mean name?" in found
    assert "\n" not in found
