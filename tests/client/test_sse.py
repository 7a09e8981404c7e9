"""An event stream is read the same in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.client.client import EngineBrokenError
from lengthwise.client.sse import MAX_LINE, EventReader, count_deltas, count_events, is_done, payload, payloads

LINE = st.sampled_from(
    [b"data: {}", b'data:{"a": "data: b"}', b"data: [DONE]", b": a comment", b"event: message_delta", b"id: 1", b""]
)


@given(st.lists(LINE, max_size=12), st.sampled_from([b"\n", b"\r\n"]), st.lists(st.integers(0, 300), max_size=8))
def test_lines_are_the_same_in_any_pieces(lines: list[bytes], end: bytes, cuts: list[int]) -> None:
    sent = b"".join(line + end for line in lines) + b"data: incompl"
    places = sorted({0, len(sent), *(cut % len(sent) for cut in cuts)})
    reader = EventReader()
    pieces = [reader.feed(sent[start:stop]) for start, stop in pairwise(places)]
    assert all(piece.endswith(b"\n") for piece in pieces if piece)
    assert b"".join(pieces) + reader.held == sent
    assert reader.held == b"data: incompl"
    data = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
    assert [each for piece in pieces for each in payloads(piece)] == data
    assert sum(map(count_events, pieces)) == len(data)
    assert any(map(is_done, pieces)) == (b"[DONE]" in data)


@pytest.mark.parametrize("line", [b": data: x", b"event: data:", b" data: x", b"\r\n", b""])
def test_a_line_that_is_not_data_has_no_payload(line: bytes) -> None:
    assert payload(line) is None
    assert payloads(line) == []


@pytest.mark.parametrize(
    ("lines", "done"),
    [
        (b"data:[DONE]\r\n", True),
        (b"data: [DONE]", True),
        (b'data: {"text": "[DONE]"}\n', False),
        (b": [DONE]\n", False),
        (b"data: [DONE] no\n", False),
    ],
)
def test_only_the_payload_done_ends_a_stream(lines: bytes, done: bool) -> None:
    assert is_done(lines) == done


def test_deltas_are_counted_by_the_name_of_their_event() -> None:
    lines = b'event: response.output_text.delta\r\ndata: {"event: x.delta"}\r\n\r\nevent:content_block_delta\n\n'
    assert count_deltas(lines + b"event: response.completed\n\n") == 2


def test_a_line_without_an_end_breaks_the_stream() -> None:
    reader = EventReader()
    assert reader.feed(b"x" * MAX_LINE) == b""
    with pytest.raises(EngineBrokenError, match="too long"):
        reader.feed(b"x")
