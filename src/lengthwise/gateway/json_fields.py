"""Change top-level fields of a JSON object in its bytes: everything else stays as the client sent it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lengthwise.gateway.json_outline import Field, fields_of

# Strings are matched whole, so that what is inside them is no structure.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)


LARGE_BODY: Final = 1 << 16
"""Bytes of a body from which on it is scanned and edited in a thread, and only its outline is parsed."""


def edit_fields(raw: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Return the object with these fields replaced by JSON, or removed (None), wherever they occur; none is added.

    `raw` must be a valid JSON object.
    """
    fields = _fields(raw)
    if not any(field.name in changes for field in fields):
        return raw
    kept = []
    for field in fields:
        if field.name not in changes:
            kept.append(raw[field.start : field.end])
        elif (value := changes[field.name]) is not None:
            old = raw[field.value : field.end]
            space = old[: len(old) - len(old.lstrip())]
            kept.append(raw[field.start : field.value] + space + value + old[len(old.rstrip()) :])
    return raw[: fields[0].start] + b",".join(kept) + raw[fields[-1].end :]


async def edited(raw: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return an edited body; a large one is edited in a thread, since others would wait for seconds."""
    return edit(raw) if len(raw) < LARGE_BODY else await asyncio.to_thread(edit, raw)


def add_field(raw: bytes, field: bytes) -> bytes:
    """Return the object with a field, as `"name":value`, in front."""
    rest = raw.lstrip()[1:]
    return b"{" + field + (b"" if rest.lstrip().startswith(b"}") else b",") + rest


def value_of(raw: bytes, name: str) -> Any:
    """Return the value of a field of a valid JSON object, of repeated ones the last; KeyError if there is none."""
    if len(raw) < LARGE_BODY:
        return json.loads(raw)[name]
    found = {field.name: field for field in fields_of(raw)}[name]
    return json.loads(raw[found.value : found.end])


def _fields(raw: bytes) -> list[Field]:
    if len(raw) >= LARGE_BODY:
        return fields_of(raw)
    found: list[Field] = []
    depth = start = value = 0
    name: str | None = None
    for token in _TOKEN.finditer(raw):
        kind = raw[token.start() : token.start() + 1]
        if kind in (b"{", b"["):
            depth += 1
            if depth == 1:
                start = token.end()
        elif kind in (b"}", b"]"):
            depth -= 1
        if name is not None and ((depth == 1 and kind == b",") or depth == 0):
            found.append(Field(name, start, value, token.start()))
            name, start = None, token.end()
        if depth == 0:
            break
        if depth == 1 and kind == b":":
            value = token.end()
        elif depth == 1 and kind == b'"' and name is None:
            name = json.loads(token.group())
    return found
