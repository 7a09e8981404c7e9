"""Change top-level fields of a JSON object in its bytes: everything else stays as the client sent it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

# Strings are matched whole, so that what is inside them is no structure.
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)


LARGE_BODY: Final = 1 << 20
"""Bytes of a body from which on it is parsed and edited in a thread."""


class _Field(NamedTuple):
    name: str
    start: int  # of the bytes from the comma or brace before it
    value: int
    end: int  # at the comma or brace after it


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


def _fields(raw: bytes) -> list[_Field]:
    found: list[_Field] = []
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
            found.append(_Field(name, start, value, token.start()))
            name, start = None, token.end()
        if depth == 0:
            break
        if depth == 1 and kind == b":":
            value = token.end()
        elif depth == 1 and kind == b'"' and name is None:
            name = json.loads(token.group())
    return found
