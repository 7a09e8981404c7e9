"""The structure of a JSON object, found by scanning its bytes: nothing is parsed, and no Python object is built for it.

A body of `[{},{},...]` takes 26 times its bytes as Python objects. `scan` counts what a body holds, in steps that leave
the interpreter to other threads, and raises TooComplexError beyond limits. `outline` returns the part of a large body
that has to be parsed: without the fields that are not asked for, and with long texts and arrays replaced by references.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

MAX_ELEMENTS: Final = 1 << 20
"""Commas and colons of a body, without those in texts: a million token ids are a legal prompt."""
MAX_CONTAINERS: Final = 1 << 16
"""Objects and arrays of a body."""
MAX_DEPTH: Final = 200
"""Objects and arrays inside each other, as in pydantic."""
MAX_FIELDS: Final = 1024
"""Fields of the object itself."""
MAX_FIELD_BYTES: Final = 1 << 20
"""Of a field that is parsed whole: any but prompts, messages and the like."""

_STEP: Final = 1 << 18  # bytes that are scanned at once
_SHORT_BYTES: Final = 1 << 16
_PROMPT: Final = "prompt"
_MAX_PROMPT_BRACKETS: Final = 4  # of a prompt that is one text or one array of token ids: `[[1, 2]]`
_LEAF_BYTES: Final = 256  # of a text that is left out of an outline
_LEAF_ELEMENTS: Final = 256  # of an array or object without others inside that is left out
_TEXT_STEP: Final = 1 << 14  # bytes of a text with escapes that are decoded at once
# Whole characters and escapes, of a pair of surrogates both.
_CHARACTERS: Final = re.compile(
    rb"(?:[^\\\x80-\xff]+|[\xc0-\xdf].|[\xe0-\xef]..|[\xf0-\xf7]...|\\[^u]"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*+",
    re.DOTALL,
)
_COMMA, _COLON, _OPEN_OBJECT, _OPEN_ARRAY, _CLOSE_OBJECT, _CLOSE_ARRAY = range(1, 7)
_KINDS: Final = np.zeros(256, np.uint8)
_KINDS[np.frombuffer(b",:{[}]", np.uint8)] = np.arange(1, 7)
_STEPS: Final = np.array([0, 0, 0, 1, 1, -1, -1], np.int8)  # of the depth, by kind

Places = NDArray[np.int64]


class TooComplexError(ValueError):
    """A body exceeds a limit of its structure."""


class NotAnObjectError(ValueError):
    """The bytes are not a JSON object."""


class Field(NamedTuple):
    """A field of a JSON object, by places in its bytes."""

    name: str
    start: int
    """Of the bytes from the comma or brace before it."""
    value: int
    end: int
    """At the comma or brace after it."""


class Structure(NamedTuple):
    """What a scan has found outside of strings."""

    elements: int
    """Commas and colons."""
    containers: int
    """Objects and arrays."""
    top: list[tuple[int, int]]
    """Place and kind of the commas and colons of the object itself, and of the brace that ends it."""
    brackets: Places
    """Place of each bracket and brace, its kind, and the number of marks before it."""
    texts: Places
    """Begin and end of long strings."""


class _Texts:
    """Collects the strings of some bytes."""

    def __init__(self) -> None:
        self.inside = False
        self.long: list[Places] = []
        self._begin = 0
        self._escaped = False

    def feed(self, data: NDArray[np.uint8], at: int) -> Places:
        """Take the next bytes; return the places of quotes that begin or end a string."""
        found, self._escaped = _unescaped(data, escaped=self._escaped)
        ends: Places = np.concatenate([np.array([self._begin] * self.inside, np.int64), found + at])
        pairs: Places = ends[: len(ends) // 2 * 2].reshape(-1, 2) + np.array([0, 1])
        self.long.append(pairs[pairs[:, 1] - pairs[:, 0] > _LEAF_BYTES])
        self.inside = bool(len(ends) % 2)
        if self.inside:
            self._begin = int(ends[-1])
        return found


def scan(raw: bytes) -> Structure:
    """Return the structure of a JSON object; TooComplexError beyond the limits, NotAnObjectError if it is none.

    Not all that is no JSON is found.
    """
    texts, top, brackets = _Texts(), list[tuple[int, int]](), list[Places]()
    depth = elements = containers = marks = 0
    for at in range(0, len(raw), _STEP):
        data = np.frombuffer(raw, np.uint8, min(_STEP, len(raw) - at), at)
        inside, found = texts.inside, texts.feed(data, at)
        kinds = _KINDS[data]
        places = np.flatnonzero(kinds)
        if len(found) or inside:
            places = places[(np.searchsorted(found, places) + inside) % 2 == 0]
        if not len(places):
            continue
        kinds = kinds[places]
        depths = depth + np.cumsum(_STEPS[kinds], dtype=np.int32)
        is_element = kinds <= _COLON
        elements += int(is_element.sum())
        containers += int(((kinds == _OPEN_OBJECT) | (kinds == _OPEN_ARRAY)).sum())
        if elements > MAX_ELEMENTS:
            raise TooComplexError(f"more than {MAX_ELEMENTS} elements")
        if containers > MAX_CONTAINERS:
            raise TooComplexError(f"more than {MAX_CONTAINERS} objects and arrays")
        if depths.max() > MAX_DEPTH:
            raise TooComplexError(f"more than {MAX_DEPTH} objects and arrays inside each other")
        if not marks and (kinds[0] != _OPEN_OBJECT or raw[: int(places[0]) + at].strip()):
            raise NotAnObjectError("no JSON object")
        own = np.flatnonzero(((depths == 1) & is_element) | (depths <= 0))
        if len(top) + len(own) > 2 * MAX_FIELDS:
            raise TooComplexError(f"more than {MAX_FIELDS} fields")
        top += zip((places[own] + at).tolist(), kinds[own].tolist(), strict=True)
        ends = np.flatnonzero(~is_element)
        brackets.append(np.stack([places[ends] + at, kinds[ends], ends + marks], axis=1))
        marks += len(places)
        depth = int(depths[-1])
    if depth or texts.inside or not top or top[-1][1] != _CLOSE_OBJECT or raw[top[-1][0] + 1 :].strip():
        raise NotAnObjectError("no JSON object")
    return Structure(elements, containers, top, np.concatenate(brackets), np.concatenate(texts.long))


def _unescaped(data: NDArray[np.uint8], *, escaped: bool) -> tuple[Places, bool]:
    """Return the places of quotes without a backslash, and whether the byte after the last is escaped.

    `escaped`: whether the first byte is. A run of backslashes escapes what follows it if their number is odd.
    """
    quotes = np.flatnonzero(data == ord('"'))
    backslashes = np.flatnonzero(data == ord("\\"))
    if not len(backslashes):
        return (quotes[1:] if escaped and len(quotes) and quotes[0] == 0 else quotes), escaped and not len(data)
    begins = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
    lengths = np.diff(np.append(begins, len(backslashes)))
    ends = backslashes[begins] + lengths
    continues = escaped and backslashes[0] == 0
    if continues:
        lengths[0] += 1
    hidden = ends[lengths % 2 == 1]
    if escaped and not continues:
        hidden = np.append(0, hidden)
    last = len(hidden) > 0 and bool(hidden[-1] == len(data))
    return quotes[~np.isin(quotes, hidden, assume_unique=True)], last


def fields_of(raw: bytes, structure: Structure | None = None) -> list[Field]:
    """Return the fields of a JSON object in order, repeated ones too; NotAnObjectError if it is none."""
    top = (structure or scan(raw)).top
    found: list[Field] = []
    start, name, value = raw.index(b"{") + 1, None, 0
    for place, kind in top:
        if kind == _COLON and name is None:
            try:
                name, value = json.loads(raw[start:place], strict=False), place + 1
            except ValueError as error:
                raise NotAnObjectError("a field without a name") from error
        elif kind != _COLON:
            if isinstance(name, str):
                found.append(Field(name, start, value, place))
            elif name is not None or raw[start:place].strip() or found:
                raise NotAnObjectError("a field without a name")
            start, name = place + 1, None
    return found


class Outline(NamedTuple):
    """What of a JSON object has to be parsed, and what is left out of it."""

    raw: bytes
    json: bytes
    """The object with the fields that were asked for, in which long values are strings that refer to `spans`."""
    mark: str
    """Begins these strings; the number of the span follows, and `;`."""
    spans: Places
    """Begin and end, in `raw`, of each value that is left out."""
    prompts: int = 1
    """Elements of the array `prompt`: of several prompts their number."""

    def is_array(self, text: object) -> tuple[int, int] | None:
        """Return the span of an array without others inside that a string refers to; None if it refers to none."""
        number = self._number(text)
        if number is None:
            return None
        start, end = self.spans[number].tolist()
        return (start, end) if self.raw[start : start + 1] == b"[" else None

    def expand(self, text: bytes) -> Iterator[bytes]:
        """Yield a text that was made from the parsed outline, with the texts that it refers to, as UTF-8.

        ValueError if one of them is no JSON string.
        """
        pieces = re.split(re.escape(self.mark.encode()) + rb"(\d+);", text)
        for place, piece in enumerate(pieces):
            if place % 2 == 0:
                yield piece
            elif int(piece) < len(self.spans):
                yield from _decoded(self.raw, *self.spans[int(piece)].tolist())

    def _number(self, text: object) -> int | None:
        if not isinstance(text, str) or not text.startswith(self.mark):
            return None
        return int(text[len(self.mark) : -1])


def outline(
    raw: bytes, whole: Collection[str], shortened: Collection[str] = (), short: Collection[str] = ()
) -> Outline:
    """Return an object with the fields in `whole`, and those in `shortened` without their long values.

    Fields in `short` are null where they are long. Raises TooComplexError, or NotAnObjectError.
    """
    structure = scan(raw)
    spans = _leaves(structure)
    begins = spans[:, 0]
    mark = f"\x1a{os.urandom(8).hex()}:"  # no client can guess it
    shown = json.dumps(mark)[:-1].encode()
    parts: list[bytes] = []
    prompts = 1
    for field in fields_of(raw, structure):
        if field.name == _PROMPT:
            prompts = _elements(structure, field)
        if field.name in whole:
            if field.end - field.value > MAX_FIELD_BYTES:
                raise TooComplexError(f"more than {MAX_FIELD_BYTES} bytes in '{field.name}'")
            parts.append(raw[field.start : field.end])
        elif field.name in short:
            long = field.end - field.value > _SHORT_BYTES
            parts.append(raw[field.start : field.value] + (b"null" if long else raw[field.value : field.end]))
        elif field.name == _PROMPT and _brackets(structure, field) > _MAX_PROMPT_BRACKETS:
            parts.append(raw[field.start : field.value] + b"[null,null]")  # several prompts, which are not read
        elif field.name in shortened:
            pieces: list[bytes] = []
            at = field.start
            first, last = np.searchsorted(begins, (field.value, field.end)).tolist()
            for number, (start, end) in enumerate(spans[first:last].tolist(), start=first):
                pieces += (raw[at:start], b'%b%d;"' % (shown, number))
                at = end
            parts.append(b"".join([*pieces, raw[at : field.end]]))
    return Outline(raw, b"{" + b",".join(parts) + b"}", mark, spans, prompts)


def _brackets(structure: Structure, field: Field) -> int:
    first, last = np.searchsorted(structure.brackets[:, 0], (field.value, field.end)).tolist()
    return int(last - first)


def _elements(structure: Structure, field: Field) -> int:
    """Return the elements of an array of texts and numbers, or of arrays."""
    first, last = np.searchsorted(structure.brackets[:, 0], (field.value, field.end)).tolist()
    inside = structure.brackets[first:last]
    if len(inside) > 2:
        return (len(inside) - 2) // 2
    return int(inside[1, 2] - inside[0, 2]) if len(inside) else 1


def _leaves(structure: Structure) -> Places:
    """Return begin and end of long strings, and of objects and arrays of many elements without others inside."""
    brackets, texts = structure.brackets, structure.texts
    opens, closes = brackets[:-1], brackets[1:]
    flat = (opens[:, 1] <= _OPEN_ARRAY) & (closes[:, 1] > _OPEN_ARRAY)
    flat &= closes[:, 2] - opens[:, 2] > _LEAF_ELEMENTS
    arrays = np.stack([opens[flat, 0], closes[flat, 0] + 1], axis=1)
    # Strings inside such an array or object go with it.
    after = np.searchsorted(arrays[:, 0], texts[:, 0])
    within = texts[:, 0] < np.append(0, arrays[:, 1])[after]
    leaves = np.concatenate([texts[~within], arrays])
    return np.asarray(leaves[np.argsort(leaves[:, 0], kind="stable")], np.int64)


def _decoded(raw: bytes, start: int, end: int) -> Iterator[bytes]:
    """Yield the text of a JSON string as UTF-8; what is no string as it is."""
    if raw[start : start + 1] != b'"':
        yield raw[start:end]
        return
    at, stop = start + 1, end - 1
    while at < stop:
        to = min(at + _TEXT_STEP, stop)
        if raw.find(b"\\", at, to) < 0:
            while to < stop and to > at + 1 and raw[to] & 0xC0 == 0x80:  # within a character
                to -= 1
            yield raw[at:to]
        else:
            found = _CHARACTERS.match(raw, at, to)
            if found is None or found.end() == at:
                raise ValueError("no JSON string")
            to = found.end()
            yield from_json(b'"%b"' % raw[at:to]).encode()
        at = to


def numbers_of(raw: bytes, start: int, end: int) -> Iterable[NDArray[np.int64]]:
    """Yield the integers of a JSON array of nothing else, some at a time; ValueError if there is anything else."""
    at, stop = start + 1, end - 1
    while at < stop:
        to = stop if stop - at <= _TEXT_STEP else raw.rfind(b",", at, at + _TEXT_STEP) + 1
        if to <= at:
            raise ValueError("a number is too long")
        found = from_json(b"[" + raw[at : to - (to < stop)] + b"]")
        if not all(type(number) is int for number in found):
            raise ValueError("not all are integers")
        yield np.array(found, np.int64)
        at = to
