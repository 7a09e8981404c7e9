"""Edits of fields in the bytes of a JSON object leave all other bytes unchanged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.json_fields import add_field, edit_fields

NAMES = st.sampled_from(["model", "priority", "a", "\u00e9", 'quo"te', "back\\slash", "{", "}", ",", ":"]) | st.text(
    max_size=3
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)
CHANGES = st.dictionaries(NAMES, st.none() | VALUES.map(lambda value: ("new", value)), max_size=3)


@given(fields=OBJECTS, changes=CHANGES, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_the_edited_object_has_exactly_the_changes(
    fields: dict[str, object], changes: dict[str, tuple[str, object] | None], indent: int | None, ascii_only: bool
) -> None:
    raw = b" " + json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode() + b"\n"
    new = {name: None if change is None else json.dumps(change[1]).encode() for name, change in changes.items()}
    kept = {name: value for name, value in fields.items() if name not in changes}
    set_ = {name: change[1] for name, change in changes.items() if change is not None and name in fields}
    assert json.loads(edit_fields(raw, new)) == kept | set_
    assert list(json.loads(edit_fields(raw, new))) == [name for name in fields if name in kept or name in set_]


@given(fields=OBJECTS)
def test_a_field_that_is_replaced_by_its_own_bytes_changes_no_byte(fields: dict[str, object]) -> None:
    raw = json.dumps(fields).encode()
    assert edit_fields(raw, {}) == raw
    assert edit_fields(raw, {name: json.dumps(value).encode() for name, value in fields.items()}) == raw


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{ "model" : "m" , "x":1.50}', b'{ "model" : "n" , "x":1.50}'),
        (b'{"x":{"model":"m"},"model":"m"}', b'{"x":{"model":"m"},"model":"n"}'),
        (b'{"model":"a","x":"\\"model\\":1","model":"b"}', b'{"model":"n","x":"\\"model\\":1","model":"n"}'),
        (b'{"\\u006dodel":7}', b'{"\\u006dodel":"n"}'),
        (b"{}", b"{}"),
    ],
)
def test_only_the_bytes_of_the_value_change(raw: bytes, expected: bytes) -> None:
    assert edit_fields(raw, {"model": b'"n"'}) == expected


def test_removing_a_field_removes_its_comma() -> None:
    assert edit_fields(b'{"a": 1, "b": 2, "c": 3}', {"b": None}) == b'{"a": 1, "c": 3}'
    assert edit_fields(b'{"a": 1, "b": 2}', {"b": None}) == b'{"a": 1}'
    assert edit_fields(b'{"a": 1}', {"a": None}) == b"{}"


def test_a_field_is_added_in_front() -> None:
    assert add_field(b' {"a":1}', b'"b":2') == b'{"b":2,"a":1}'
    assert add_field(b"{ }", b'"b":2') == b'{"b":2 }'
