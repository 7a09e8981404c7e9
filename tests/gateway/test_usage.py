"""The length of answers of /v1/responses and /v1/messages is read from their bytes, in any pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.bodies import ChatBody, CompletionBody, MessagesBody, ResponsesBody, parse
from lengthwise.gateway.streaming import AnswerMeter
from lengthwise.gateway.usage import MessagesMeter, ResponsesMeter
from tests.gateway.formats import named, stream_events, whole_answer

MEASURES: dict[str, type[AnswerMeter]] = {"/v1/responses": ResponsesMeter, "/v1/messages": MessagesMeter}
PATHS = st.sampled_from(sorted(MEASURES))


def stream(path: str, tokens: int, reason: str) -> bytes:
    opening, each, closing = stream_events(path, tokens, reason, "m", usage=False)
    return b"".join([*opening, *each, *closing])


@pytest.mark.parametrize("path", MEASURES)
@pytest.mark.parametrize(("reason", "cut"), [("stop", False), ("length", True)])
def test_length_and_censoring_are_read_from_an_answer_in_one_piece(path: str, reason: str, cut: bool) -> None:
    meter = MEASURES[path]()
    meter.whole(json.dumps(whole_answer(path, 12, reason, "m")).encode())
    assert meter.length == (12, cut)
    assert meter.prompt_tokens == 7


@given(
    path=PATHS,
    cuts=st.lists(st.integers(0, 99), max_size=8),
    reason=st.sampled_from(["stop", "length"]),
    end=st.sampled_from([b"\n", b"\r\n"]),
)
def test_a_stream_in_any_pieces_passes_unchanged_and_has_the_same_length(
    path: str, cuts: list[int], reason: str, end: bytes
) -> None:
    sent = stream(path, 9, reason).replace(b"\n", end)
    lines = sent.splitlines(keepends=True)
    places = sorted({0, len(lines), *(cut % len(lines) for cut in cuts)})
    meter = MEASURES[path](hide_usage=True)
    assert b"".join(meter.lines(b"".join(lines[start:stop])) for start, stop in pairwise(places)) == sent
    assert meter.length == (9, reason == "length")
    assert meter.done


@given(path=PATHS, tokens=st.integers(1, 20))
def test_the_length_of_a_broken_stream_is_censored_at_its_deltas(path: str, tokens: int) -> None:
    opening, each, _ = stream_events(path, tokens, "stop", "m", usage=False)
    meter = MEASURES[path]()
    meter.lines(b"".join([*opening, *each]))
    assert meter.length == (tokens, True)
    assert not meter.done


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(path=PATHS, kind=st.sampled_from(["response.completed", "message_start", "message_delta"]), value=JSON)
def test_an_event_with_unexpected_values_passes(path: str, kind: str, value: object) -> None:
    fields: dict[str, Any] = {"response": value, "message": value, "delta": value, "usage": value}
    for event in (named(kind, **fields), named(kind, response={"status": value, "usage": {"output_tokens": value}})):
        meter = MEASURES[path]()
        assert meter.lines(event) == event
        meter.whole(event.splitlines()[1][len(b"data: ") :])
        assert meter.length is None or meter.length[0] >= 0


def test_text_that_mentions_the_last_event_does_not_end_a_stream() -> None:
    for meter in (ResponsesMeter(), MessagesMeter()):
        text = '"type":"response.completed" "type":"message_stop" event: message_stop'
        meter.lines(
            named("response.output_text.delta", delta=text) + named("content_block_delta", delta={"text": text})
        )
        assert not meter.done


def test_the_number_of_the_next_event_follows_the_last() -> None:
    meter = ResponsesMeter()
    assert meter.next_event == 0
    meter.lines(named("response.created", sequence_number=0) + named("response.in_progress", sequence_number=1))
    assert meter.next_event == 2


def test_the_id_of_an_answer_is_read_from_its_first_event_or_its_body() -> None:
    streamed, whole = ResponsesMeter(), ResponsesMeter()
    streamed.lines(stream_events("/v1/responses", 1, "stop", "m", usage=False)[0][0])
    whole.whole(json.dumps(whole_answer("/v1/responses", 1, "stop", "m")).encode())
    assert streamed.response_id == whole.response_id == "resp_1"


def test_an_answer_in_the_background_has_no_length_yet() -> None:
    meter = ResponsesMeter()
    meter.whole(json.dumps({"id": "resp_2", "status": "queued", "usage": None}).encode())
    assert meter.length is None
    assert meter.response_id == "resp_2"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"input": "hello"}, "hello"),
        ({"input": "hello", "instructions": "be brief"}, "<system> be brief\n<user> hello"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}]}]},
            "a\n[input_image]",
        ),
        (
            {
                "input": [
                    {"type": "message", "role": "user", "content": "weather?"},
                    {"type": "reasoning", "summary": []},
                    {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "1"},
                    {"type": "function_call_output", "call_id": "1", "output": "rain"},
                ],
                "tools": [{"type": "function", "name": "weather"}, {"type": "web_search"}],
            },
            (
                "<tools> weather, web_search\n<user> weather?\n<assistant> [reasoning]\n"
                "<assistant> [call weather]\n<tool> rain"
            ),
        ),
    ],
)
def test_a_body_of_responses_is_rendered_as_a_conversation(fields: dict[str, Any], text: str) -> None:
    body = parse(ResponsesBody, json.dumps({"model": "m", "max_output_tokens": 9, **fields}).encode())
    assert body.prediction_input().text == text
    assert body.limit == 9


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": [{"role": "user", "content": "hello"}]}, "hello"),
        ({"messages": [{"role": "user", "content": "hello"}], "system": "be brief"}, "<system> be brief\n<user> hello"),
        (
            {
                "system": [{"type": "text", "text": "be brief"}],
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "weather?"}, {"type": "image", "source": {}}],
                    },
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm"},
                            {"type": "tool_use", "id": "1", "name": "weather"},
                        ],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}]},
                ],
                "tools": [{"name": "weather", "input_schema": {}}],
            },
            "<tools> weather\n<system> be brief\n<user> weather?\n[image]\n<assistant> [call weather]\n<tool> rain",
        ),
    ],
)
def test_a_body_of_messages_is_rendered_as_a_conversation(fields: dict[str, Any], text: str) -> None:
    body = parse(MessagesBody, json.dumps({"model": "m", "max_tokens": 9, **fields}).encode())
    assert body.prediction_input().text == text
    assert body.limit == 9


@pytest.mark.parametrize(
    ("kind", "fields", "switch"),
    [
        (ChatBody, {"messages": [], "reasoning_effort": "low"}, "low"),
        (ChatBody, {"messages": [], "chat_template_kwargs": {"enable_thinking": False}}, "off"),
        (ResponsesBody, {"input": "hi", "reasoning": {"effort": "high"}}, "high"),
        (MessagesBody, {"messages": [], "thinking": {"type": "enabled", "budget_tokens": 9}}, "on"),
        (ChatBody, {"messages": [{"role": "user", "content": "Why? /no_think"}]}, "off"),
        (ChatBody, {"messages": [], "reasoning_effort": {"odd": 1}, "thinking": 3}, None),
    ],
)
def test_the_switch_for_reasoning_is_part_of_the_prediction_input(
    kind: type[CompletionBody], fields: dict[str, Any], switch: str | None
) -> None:
    assert parse(kind, json.dumps({"model": "m", **fields}).encode()).prediction_input().switch == switch
