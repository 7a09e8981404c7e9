"""The length of an answer is read from its bytes, in any pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.streaming import AnswerMeter


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def words(count: int, reason: str | None) -> list[bytes]:
    last = [event(choices=[{"index": 0, "delta": {"content": "w"}, "finish_reason": reason}])]
    first = [event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])]
    middle = event(choices=[{"index": 0, "delta": {"content": '"completion_tokens": 9'}, "finish_reason": None}])
    return first + [middle] * (count - 1) + last


USAGE = event(choices=[], usage={"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11})
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(("reason", "cut"), [("stop", False), ("tool_calls", False), ("length", True), ("abort", True)])
def test_length_and_censoring_are_read_from_an_answer_in_one_piece(reason: str, cut: bool) -> None:
    meter = AnswerMeter()
    text = 'it has "completion_tokens": 99 and "finish_reason": "stop"'
    choice = {"index": 0, "message": {"content": text}, "finish_reason": reason}
    meter.whole(json.dumps({"choices": [choice], "usage": {"completion_tokens": 12}}).encode())
    assert meter.length == (12, cut)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"error": {"message": "no"}}',
        b'{"choices": [{"finish_reason": "stop"}]}',
        b'{"choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}], "usage": {"completion_tokens": 30}}',
        b"\x1f\x8b\x08\x00",
    ],
)
def test_an_answer_without_one_length_has_none(body: bytes) -> None:
    meter = AnswerMeter()
    meter.whole(body)
    assert meter.length is None


def test_a_stream_without_usage_has_no_length() -> None:
    meter = AnswerMeter()
    for line in [*words(5, "stop"), DONE]:
        assert meter.lines(line) == line
    assert meter.length is None, "an event may hold several tokens"


def test_the_length_of_a_broken_stream_is_censored_at_its_events() -> None:
    meter = AnswerMeter()
    for line in words(5, None):
        meter.lines(line)
    assert meter.length == (5, True)


@given(st.lists(st.integers(0, 12), max_size=8), st.booleans(), st.sampled_from([b"\n", b"\r\n"]))
def test_only_the_usage_event_is_removed_from_a_stream_in_any_pieces(cuts: list[int], hide: bool, end: bytes) -> None:
    events = [each.replace(b"\n", end) for each in [*words(5, "stop"), USAGE, b": a comment\n\n", DONE]]
    lines = b"".join(events).splitlines(keepends=True)
    places = sorted({0, len(lines), *(cut % len(lines) for cut in cuts)})
    meter = AnswerMeter(hide_usage=hide)
    passed = b"".join(meter.lines(b"".join(lines[start:stop])) for start, stop in pairwise(places))
    expected = [each for each in events if not hide or b'"usage"' not in each]
    assert passed == b"".join(expected)
    assert meter.length == (7, False)


def test_usage_in_an_event_with_text_is_not_removed() -> None:
    meter = AnswerMeter(hide_usage=True)
    both = event(choices=[{"index": 0, "finish_reason": "stop"}], usage={"completion_tokens": 3})
    odd = b'data: "usage" of a word\n\n'
    assert meter.lines(both + odd) == both + odd
    assert meter.length == (3, False)
